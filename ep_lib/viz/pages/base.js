"use strict";
// What the pages of ep_lib.viz share.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const escape = (text) => text.replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
const colorOf = (rank) => data.colors[((rank % data.colors.length) + data.colors.length) % data.colors.length];
// Keys of a page, where no field takes them: the slider's own arrows would step twice.
function onKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
}
// In a notebook Escape gives the keyboard back to it, as it leaves a cell.
const inFrame = window.parent !== window;
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !inFrame) return;
  if (document.activeElement) document.activeElement.blur();
  window.parent.focus();
  window.parent.postMessage("ep-lib: leave", "*");  // to our extension of JupyterLab
});
