# bash completion for gpunode, for a folder that bash-completion reads: share/bash-completion/completions/gpunode
_gpunode_completion() {
    local IFS=$'\n'
    COMPREPLY=($(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _GPUNODE_COMPLETE=complete_bash "$1" 2>/dev/null))
}
complete -o default -F _gpunode_completion gpunode
