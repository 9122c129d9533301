"""bertie completion"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bertie import __version__
from bertie.commands import USUAL, VERBS
from bertie.commands.flags import Argument, Positional, variants

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Args:
    """Print a completion script for a shell. It completes commands, shipped recipes, flags and their values."""

    shell: Positional[Shell]
    """The shell. Save the script where the shell looks for it: ~/.local/share/bash-completion/completions/bertie for
    bash, _bertie in a folder of $fpath for zsh, ~/.config/fish/completions/bertie.fish for fish."""


def run(args: Args) -> dict[str, Any]:
    print(script(args.shell), end="")
    return {"shell": args.shell, "verbs": len(VERBS)}


@dataclass(frozen=True)
class Verb:
    """What a shell completes after a verb."""

    name: str
    summary: str
    first: tuple[str, ...]
    """Values of the first argument, if they are known."""
    flags: tuple[Argument, ...]

    @property
    def words(self) -> list[str]:
        return self.name.split()


def script(shell: Shell) -> str:
    """Return the completion script for a shell. The script calls no Python, so completion is instant."""
    write: dict[str, Callable[[list[Verb]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return write[shell]([_verb(name) for name in VERBS])


def _verb(name: str) -> Verb:
    """Collect the flags of all variants of a verb."""
    every = variants(name)
    arguments = {argument.name: argument for found in every.values() for argument in found}
    flags = [argument for argument in arguments.values() if not argument.positional]
    leading = next((argument for argument in arguments.values() if argument.positional), None)
    first = leading.choices if leading else ()
    if leading and leading.name in ("config", "kind"):
        first = tuple(every)
    if (usual := USUAL.get(name)) and usual.name and usual.flag:  # it replaces the first word
        flags.append(Argument(usual.flag, "", "Kind of the task.", Literal[tuple(every)], "", Verb, (), False))
    return Verb(name, _sentence(VERBS[name]), first, tuple(flags))


def _sentence(text: str) -> str:
    """Return the first sentence, without characters that a shell interprets."""
    start = re.split(r"\.(?:\s|$)", text)[0]
    return re.sub(r"[`\"'$\\]", "", start)


def _tree(verbs: list[Verb]) -> dict[str, list[Verb]]:
    """Group the verbs by their first word."""
    tree: dict[str, list[Verb]] = {}
    for verb in verbs:
        tree.setdefault(verb.words[0], []).append(verb)
    return tree


def _groups(verbs: list[Verb]) -> dict[str, list[Verb]]:
    """Group the verbs of two words by the first word."""
    return {word: found for word, found in _tree(verbs).items() if len(found[0].words) > 1}


def _cases(verbs: list[Verb], item: Callable[[Argument], str]) -> str:
    """Return the cases of bash and zsh: the arrays `first`, `flags` and `values` after each verb. item: spells a flag."""
    lines = []
    for verb in verbs:
        lines += [f'    "{verb.name}")', f"        first=({' '.join(verb.first)})", "        flags=("]
        lines += [*(f"            {item(flag)}" for flag in verb.flags), "        )"]
        if chosen := [flag for flag in verb.flags if flag.choices]:
            values = [f"        {flag.name}) values=({' '.join(flag.choices)}) ;;" for flag in chosen]
            lines += ["        case $before in", *values, "        esac"]
        lines.append("        ;;")
    return "\n".join(lines)


BASH = """# bash completion for bertie {version}, printed by `bertie completion bash`
_bertie() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} verb=${{COMP_WORDS[1]}}
    local at=2
    local -a first flags values
    COMPREPLY=()
    if [[ $word == = ]]; then  # bash splits --flag=VALUE into three words
        word=
    elif [[ $before == = ]]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{words} --help --version" -- "$word"))
        return
    fi
    case $verb in
    {groups})
        verb="$verb ${{COMP_WORDS[2]}}" at=3
        ;;
    esac
    if ((COMP_CWORD < at)); then
        case $verb in
{second}
        esac
    else
    case $verb in
{verbs}
    *) return ;;
    esac
    flags+=(--help)
    fi
    if ((${{#values[@]}})); then
        COMPREPLY=($(compgen -W "${{values[*]}}" -- "$word"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "${{flags[*]}}" -- "$word"))
    elif ((COMP_CWORD == at)); then
        COMPREPLY=($(compgen -W "${{first[*]}}" -- "$word"))
    fi
}}
complete -o default -F _bertie bertie
"""


def _bash(verbs: list[Verb]) -> str:
    groups = _groups(verbs)
    second = [
        f'        "{word} "*) values=({" ".join(v.words[1] for v in found)}) ;;' for word, found in groups.items()
    ]
    blocks = {"second": "\n".join(second), "verbs": _cases(verbs, lambda flag: flag.name)}
    return BASH.format(version=__version__, words=" ".join(_tree(verbs)), groups="|".join(groups), **blocks)


ZSH = """#compdef bertie
# zsh completion for bertie {version}, printed by `bertie completion zsh`
_bertie() {{
    local verb=$words[2] before=$words[CURRENT-1] at=3
    local -a first flags values
    if ((CURRENT == 2)); then
        first=(
{words}
        )
        _describe verb first
        return
    fi
    case $verb in
    {groups})
        verb="$verb $words[3]" at=4
        ;;
    esac
    if ((CURRENT < at)); then
        case $words[2] in
{second}
        esac
        _describe verb first
        return
    fi
    case $verb in
{verbs}
    *) return 1 ;;
    esac
    if (($#values)); then
        compadd -- $values
    elif [[ $PREFIX == -* ]]; then
        flags+=('--help:Show every flag')
        _describe -o flag flags
    else
        ((CURRENT == at && $#first)) && compadd -- $first
        _files
    fi
}}
if [[ $funcstack[1] == _bertie ]]; then
    _bertie "$@"
else
    compdef _bertie bertie
fi
"""


def _zsh(verbs: list[Verb]) -> str:
    def item(name: str, summary: str) -> str:
        escaped = summary.replace(":", r"\:")
        return f"'{name}:{escaped}'"

    groups = _groups(verbs)
    words = [
        f"            {item(word, f'{word} …' if word in groups else found[0].summary)}"
        for word, found in _tree(verbs).items()
    ]
    second = [
        f"        {word}) first=({' '.join(item(v.words[1], v.summary) for v in found)}) ;;"
        for word, found in groups.items()
    ]
    cases = _cases(verbs, lambda flag: item(flag.name, _sentence(flag.help)))
    blocks = {"words": "\n".join(words), "second": "\n".join(second), "verbs": cases}
    return ZSH.format(version=__version__, groups="|".join(groups), **blocks)


FISH = """# fish completion for bertie {version}, printed by `bertie completion fish`
function __bertie_after  # whether the words before the cursor begin with these; --exactly: and are no more
    set -l words (commandline -opc)
    set -e words[1]
    if test "$argv[1]" = --exactly
        set -e argv[1]
        test (count $words) -eq (count $argv); or return 1
    end
    set -l size (count $argv)
    test $size -eq 0; and return 0
    test (count $words) -ge $size; and test "$words[1..$size]" = "$argv"
end
{lines}
"""


def _fish(verbs: list[Verb]) -> str:
    groups = _groups(verbs)
    start = "complete -c bertie -n '__bertie_after --exactly' -f"
    lines = [f"{start} -l help", f"{start} -l version"]
    for word, found in _tree(verbs).items():
        summary = "" if word in groups else f" -d '{found[0].summary}'"
        lines.append(f"{start} -a {word}{summary}")
    for verb in verbs:
        *before, last = verb.words
        if before:
            where = f"__bertie_after --exactly {' '.join(before)}"
            lines.append(f"complete -c bertie -n '{where}' -f -a {last} -d '{verb.summary}'")
        if verb.first:
            lines.append(f"complete -c bertie -n '__bertie_after --exactly {verb.name}' -a '{' '.join(verb.first)}'")
        for flag in verb.flags:
            value = "" if flag.switch else f" -x -a '{' '.join(flag.choices)}'" if flag.choices else " -r"
            about = f" -d '{_sentence(flag.help)}'" if flag.help else ""
            lines.append(f"complete -c bertie -n '__bertie_after {verb.name}' -l {flag.name[2:]}{value}{about}")
    return FISH.format(version=__version__, lines="\n".join(lines))
