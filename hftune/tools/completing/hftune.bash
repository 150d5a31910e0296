
# `deepspeed --num_gpus 2 run_sft.py --<TAB>` and `hftune plan sft --<TAB>` become `hftune sft --<TAB>`.
_hftune() {
  local i word stage=
  for ((i = 0; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]##*/}
    if [[ $word =~ ^run_($_hftune_stages)(\.py)?$ ]]; then
      stage=${BASH_REMATCH[1]}
    elif [[ $word == merge_peft_adapter.py ]]; then
      stage=merge
    elif [[ $i == 2 && ${COMP_WORDS[1]} =~ ^($_hftune_before)$ && $word =~ ^($_hftune_stages)$ ]]; then
      stage=$word
    fi
    if [[ -n $stage ]]; then
      COMP_WORDS=(hftune "$stage" "${COMP_WORDS[@]:i+1}")
      COMP_CWORD=$((COMP_CWORD - i + 1))
      break
    fi
  done
  COMPREPLY=()
  [[ -z $stage && ${COMP_WORDS[0]##*/} != hftune ]] || _shtab_hftune
}

complete -o bashdefault -o default -F _hftune hftune $_hftune_programs
