"""The script of a shell: shtab's for `hftune`, and a function by which the scripts and launchers get the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import shtab

from hftune.arguments.stage_table import STAGES
from hftune.tools.completing.parsers import WITH_STAGE, whole_command

_STAGES, _BEFORE = "|".join(STAGES), "|".join(WITH_STAGE)
_SCRIPTS = " ".join([*(f"run_{stage}.py" for stage in STAGES), "merge_peft_adapter.py", "deepspeed", "torchrun"])

# `deepspeed --num_gpus 2 run_sft.py --<TAB>` and `hftune plan sft --<TAB>` become `hftune sft --<TAB>`.
_BASH = f"""
_hftune() {{
  local i word stage=
  for ((i = 0; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]##*/}}
    if [[ $word =~ ^run_({_STAGES})(\\.py)?$ ]]; then
      stage=${{BASH_REMATCH[1]}}
    elif [[ $word == merge_peft_adapter.py ]]; then
      stage=merge
    elif [[ $i == 2 && ${{COMP_WORDS[1]}} =~ ^({_BEFORE})$ && $word =~ ^({_STAGES})$ ]]; then
      stage=$word
    fi
    if [[ -n $stage ]]; then
      COMP_WORDS=(hftune "$stage" "${{COMP_WORDS[@]:i+1}}")
      COMP_CWORD=$((COMP_CWORD - i + 1))
      break
    fi
  done
  COMPREPLY=()
  [[ -z $stage && ${{COMP_WORDS[0]##*/}} != hftune ]] || _shtab_hftune
}}

complete -o bashdefault -o default -F _hftune hftune {_SCRIPTS}
"""
_ZSH = f"""
_hftune_scripts() {{
  local i word stage=
  for ((i = 1; i < CURRENT; i++)); do
    word=${{words[i]:t}}
    if [[ $word =~ "^run_({_STAGES})(\\.py)?$" ]]; then
      stage=${{${{word#run_}}%.py}}
    elif [[ $word == merge_peft_adapter.py ]]; then
      stage=merge
    elif [[ $i == 3 && $words[2] =~ "^({_BEFORE})$" && $word =~ "^({_STAGES})$" ]]; then
      stage=$word
    fi
    if [[ -n $stage ]]; then
      words=(hftune $stage "${{(@)words[i+1,-1]}}")
      (( CURRENT = CURRENT - i + 2 ))
      break
    fi
  done
  if [[ -n $stage || ${{words[1]:t}} == hftune ]]; then
    _shtab_hftune "$@"
  else
    _files
  fi
}}

if [[ $zsh_eval_context[-1] == eval ]]; then
  compdef _hftune_scripts -N hftune {_SCRIPTS}
fi
"""
_MORE = {"bash": _BASH, "zsh": _ZSH, "fish": ""}


def script(shell: str, commands: Iterable[str], arguments: Mapping[str, str]) -> str:
    """The script of a shell that completes `hftune`, the scripts, and scripts behind a launcher.

    Args:
        shell: A key of `_MORE`.
        commands: All subcommands but the stages.
        arguments: Where the classes of their arguments are.
    """
    parser = whole_command(commands, arguments)
    return f"{shtab.complete(parser, shell)}\n{_MORE[shell]}"
