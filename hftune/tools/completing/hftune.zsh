
# `deepspeed --num_gpus 2 run_sft.py --<TAB>` and `hftune plan sft --<TAB>` become `hftune sft --<TAB>`.
_hftune_scripts() {
  local i word stage=
  for ((i = 1; i < CURRENT; i++)); do
    word=${words[i]:t}
    if [[ $word =~ "^run_($_hftune_stages)(\.py)?$" ]]; then
      stage=${${word#run_}%.py}
    elif [[ $word == merge_peft_adapter.py ]]; then
      stage=merge
    elif [[ $i == 3 && $words[2] =~ "^($_hftune_before)$" && $word =~ "^($_hftune_stages)$" ]]; then
      stage=$word
    fi
    if [[ -n $stage ]]; then
      words=(hftune $stage "${(@)words[i+1,-1]}")
      (( CURRENT = CURRENT - i + 2 ))
      break
    fi
  done
  if [[ -n $stage || ${words[1]:t} == hftune ]]; then
    _shtab_hftune "$@"
  else
    _files
  fi
}

if [[ $zsh_eval_context[-1] == eval ]]; then
  compdef _hftune_scripts -N hftune ${=_hftune_programs}
fi
