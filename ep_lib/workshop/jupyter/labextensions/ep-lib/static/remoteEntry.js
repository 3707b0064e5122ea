// A JupyterLab extension written by hand, so that nothing needs a build: a container of webpack's module federation with
// one module, './extension', and five plugins.
(function () {
    let shared;

    // What another package exports that JupyterLab shares with its extensions.
    async function shares(name) {
        const versions = shared[name];
        const factory = await versions[Object.keys(versions)[0]].get();
        return factory();
    }

    async function cuda() {
        const { IEditorLanguageRegistry } = await shares('@jupyterlab/codemirror');
        return {
            id: 'ep-lib:cuda',
            description: 'Shows .cu and .cuh files as C++.',
            autoStart: true,
            requires: [IEditorLanguageRegistry],
            activate: (app, languages) => {
                const cpp = languages.findByMIME('text/x-c++src');
                languages.addLanguage({
                    name: 'CUDA',
                    displayName: 'CUDA C++',
                    mime: 'text/x-cuda',
                    extensions: ['cu', 'cuh'],
                    load: () => cpp.load(),
                });
            },
        };
    }

    // A page in a frame may not look out of it: it asks (ep_lib/viz/pages/base.js).
    const leave = {
        id: 'ep-lib:leave',
        description: 'Escape in a page of ep_lib.viz gives the keyboard back to the notebook.',
        autoStart: true,
        activate: () => {
            window.addEventListener('message', (event) => {
                if (event.data !== 'ep-lib: leave') return;
                for (const frame of document.querySelectorAll('.jp-Cell iframe')) {
                    if (frame.contentWindow === event.source) frame.closest('.jp-Cell').focus();
                }
            });
        },
    };

    // Pictures and listings have an ink of their own, dark on light. Turned around, blue stays blue. A page in a frame looks
    // at the frame's own scheme. (As in docs/site/wide.css.)
    const looks = {
        id: 'ep-lib:looks',
        description: 'In a dark theme, pictures and listings are dark, too; in a narrow page, drawings of text scroll; lines of output break between words.',
        autoStart: true,
        activate: () => {
            const style = document.createElement('style');
            style.textContent = `
                .jp-Cell .jp-MarkdownOutput pre, .jp-Cell .jp-MarkdownOutput pre code { white-space: pre; overflow-x: auto; }
                .jp-OutputArea .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }
                [data-jp-theme-light="false"] .jp-OutputArea-output :is(img, [style*="color:#222222"]) {
                    filter: invert(0.93) hue-rotate(180deg);
                }
                [data-jp-theme-light="false"] .jp-OutputArea-output iframe { color-scheme: dark; }
                [data-jp-theme-light="true"] .jp-OutputArea-output iframe { color-scheme: light; }`;
            document.head.append(style);
        },
    };

    const tabs = {
        id: 'ep-lib:tabs',
        description: 'Says so when a notebook is open in two tabs of the browser.',
        autoStart: true,
        activate: (app) => {
            const channel = new BroadcastChannel('ep-lib: open notebooks');
            let known = new Set(), told = new Set();
            const notebooks = () => new Set([...app.shell.widgets('main')]
                .map((widget) => widget.context && widget.context.path).filter((path) => path && path.endsWith('.ipynb')));
            const tell = (path) => {
                if (told.has(path)) return;
                told.add(path);
                app.commands.execute('apputils:notify', {
                    message: `${path.split('/').pop()} is open in another tab, too: close one of the two, or what you ` +
                        'write there may get lost.',
                    type: 'warning',
                    options: { autoClose: false },
                });
            };
            channel.onmessage = ({ data: { path, asks } }) => {
                if (!notebooks().has(path)) return;
                tell(path);
                if (asks) channel.postMessage({ path, asks: false });
            };
            const look = () => {
                const open = notebooks();
                for (const path of open) if (!known.has(path)) channel.postMessage({ path, asks: true });
                for (const path of told) if (!open.has(path)) told.delete(path);
                known = open;
            };
            app.restored.then(() => {
                look();
                app.shell.layoutModified.connect(look);
            });
        },
    };

    const WIDGETS = 'application/vnd.jupyter.widget-view+json';

    // A widget lives in the kernel. As ep_lib/workshop/course/saving.py does, this leaves the form that needs none.
    function withoutWidgets(panel) {
        for (const cell of panel.content.model ? panel.content.model.cells : []) {
            if (cell.type !== 'code') continue;
            for (let number = 0; number < cell.outputs.length; number++) {
                const output = cell.outputs.get(number).toJSON();
                if (!output.data || !output.data['text/html'] || !output.data[WIDGETS]) continue;
                const { [WIDGETS]: gone, ...data } = output.data;
                cell.outputs.set(number, { ...output, data });
            }
        }
    }

    async function predictions() {
        const { INotebookTracker } = await shares('@jupyterlab/notebook');
        return {
            id: 'ep-lib:predictions',
            description: 'Predictions are text once their kernel is gone; after a choice, Shift+Enter goes on.',
            autoStart: true,
            requires: [INotebookTracker],
            activate: (app, tracker) => {
                tracker.widgetAdded.connect((_, panel) => panel.sessionContext.statusChanged.connect((_, status) => {
                    if (['restarting', 'autorestarting', 'dead'].includes(status)) withoutWidgets(panel);
                }));
                document.addEventListener('click', (event) => {
                    const button = event.target.closest('.ep-lib-prediction button');
                    const notebook = button && tracker.currentWidget && tracker.currentWidget.content;
                    const at = notebook ? notebook.widgets.findIndex((cell) => cell.node.contains(button)) : -1;
                    if (at >= 0 && at + 1 < notebook.widgets.length) notebook.activeCellIndex = at + 1;
                });
            },
        };
    }

    window._JUPYTERLAB = window._JUPYTERLAB || {};
    window._JUPYTERLAB['ep-lib'] = {
        init: (scope) => { shared = scope; },
        get: async () => {
            const plugins = [await cuda(), await predictions(), leave, looks, tabs];
            return () => ({ __esModule: true, default: plugins });
        },
    };
})();
