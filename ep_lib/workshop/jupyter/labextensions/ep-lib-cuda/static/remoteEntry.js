// A JupyterLab extension written by hand, so that nothing needs a build: a container of webpack's module federation with
// one module, './extension'. It tells the editor that .cu and .cuh files are C++.
(function () {
    let shared;

    // What another package exports that JupyterLab shares with its extensions.
    async function shares(name) {
        const versions = shared[name];
        const factory = await versions[Object.keys(versions)[0]].get();
        return factory();
    }

    async function extension() {
        const { IEditorLanguageRegistry } = await shares('@jupyterlab/codemirror');
        const plugin = {
            id: 'ep-lib-cuda:plugin',
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
        return { __esModule: true, default: plugin };
    }

    window._JUPYTERLAB = window._JUPYTERLAB || {};
    window._JUPYTERLAB['ep-lib-cuda'] = {
        init: (scope) => { shared = scope; },
        get: async () => {
            const module = await extension();
            return () => module;
        },
    };
})();
