"""The frame of every page of the board, its style, and small pieces that several pages share."""

from __future__ import annotations

from hftune.tools.reporting.style import CSS as REPORT
from hftune.visible import html

CSS = (
    REPORT
    + """
header{display:flex;flex-wrap:wrap;align-items:center;gap:6px 14px;margin-bottom:.6rem}
header a{color:inherit}
header strong{font-size:1.1rem;margin-right:auto}
header strong a{text-decoration:none}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,280px),1fr));gap:12px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px;min-width:0}
.card h3{display:flex;gap:10px;align-items:baseline;margin:0 0 .3rem;overflow-wrap:anywhere}
.card h3 a{flex:1;color:inherit}
.card small{color:var(--soft);font-size:.8rem}
.card label{color:var(--soft);font-size:.85rem;white-space:nowrap;font-weight:400;padding:4px 0}
.state{font-size:.8rem;border:1px solid var(--rule);border-radius:99px;padding:1px 9px;white-space:nowrap;
font-weight:400;color:var(--soft)}
.state.running{border-color:var(--c2);color:var(--c2)}
.state.silent,.state.stopped,.state.unreadable,.fault{border-color:var(--c1);color:var(--c1)}
progress{display:block;width:100%;height:8px;margin:.35rem 0;accent-color:var(--c0)}
.figures{font-variant-numeric:tabular-nums;font-size:.9rem;color:var(--fg);margin:.2rem 0;overflow-wrap:anywhere}
button,.button,select,input,textarea{font:inherit;color:inherit;background:var(--bg);border:1px solid var(--rule);
border-radius:6px;padding:6px 12px;max-width:100%}
button,.button{cursor:pointer;background:var(--card);text-decoration:none;display:inline-block}
button.first{background:var(--c0);border-color:var(--c0);color:var(--bg)}
button:hover,.button:hover{border-color:var(--c0)}
:focus-visible{outline:2px solid var(--c0);outline-offset:1px}
.row{display:flex;flex-wrap:wrap;gap:8px 14px;align-items:center;margin:.6rem 0}
.fields{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:12px 20px;margin:.5rem 0}
.fields label{display:block;min-width:0;overflow-wrap:anywhere}
.fields input,.fields select,.fields textarea{width:100%;margin:2px 0}
.fields small{display:block;color:var(--soft);font-size:.8rem}
fieldset{border:1px solid var(--rule);border-radius:8px;padding:4px 14px 10px;margin:1rem 0;min-width:0}
legend{font-weight:600;padding:0 6px}
.lost{display:none}body[data-lost] .lost{display:block;color:var(--c1)}
.log{max-height:22rem;overflow:auto}
.lineage ul{list-style:none;padding-left:18px;border-left:1px solid var(--rule);margin:.3rem 0}
[hidden]{display:none!important}
"""
)


def page(title: str, body: str, *, depth: int = 0, live: bool = True, styled: bool = True) -> str:
    """A whole page.

    Args:
        body: HTML.
        depth: Folders between its address and the board's first page: all addresses are relative, behind the token.
        live: Whether it has parts that change: without a script the browser loads it again.
        styled: Whether whoever reads it may load style and script.
    """
    first = "../" * depth or "./"
    again = '<noscript><meta http-equiv="refresh" content="10"></noscript>' if live else ""
    loads = f'<link rel="stylesheet" href="{first}board.css"><script src="{first}board.js" defer></script>'
    head = (
        f'<header><strong><a href="{first}">hftune board</a></strong><a href="{first}new">new pipeline</a></header>'
        '<p class="lost" role="status">The board does not answer: what is shown is old.</p>'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"{again}<title>{html(title)}</title>{loads if styled else ''}</head>\n"
        f"<body><main>{head if styled else ''}{body}</main></body></html>\n"
    )


def part(address: str, content: str) -> str:
    """A piece of a page that the script asks for again and again."""
    return f'<div data-live="{html(address)}">{content}</div>'


def state(word: str) -> str:
    """A word on how a run does."""
    return f'<span class="state {html(word.partition(" ")[0])}">{html(word)}</span>' if word else ""


def pre(lines: list[str]) -> str:
    """Lines of a log."""
    return f'<pre class="log" tabindex="0">{html(chr(10).join(lines))}</pre>' if lines else ""
