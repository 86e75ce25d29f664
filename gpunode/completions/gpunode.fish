# fish completion for gpunode, for share/fish/vendor_completions.d/gpunode.fish
function __gpunode_complete
    _GPUNODE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] _TYPER_COMPLETE_ARGS=(commandline -cp) gpunode 2>/dev/null
end
complete --command gpunode --no-files --condition '__gpunode_complete is-args' --arguments '(__gpunode_complete get-args)'
