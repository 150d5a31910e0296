"""The look of the report's page: light and dark by the reader's setting, one column on a phone."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--rule:#d8dee4;--card:#f6f8fa;--mark:#d2f4d9;
--c0:#0b62c4;--c1:#c2500a;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#0f766e}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9aa4af;--rule:#30363d;--card:#161b22;
--mark:#124b26;--c0:#58a6ff;--c1:#f0883e;--c2:#56d364;--c3:#bc8cff;--c4:#f778ba;--c5:#2dd4bf}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:16px}
h1{font-size:1.6rem;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:2.2rem 0 .4rem;padding-top:.8rem;border-top:1px solid var(--rule);overflow-wrap:anywhere}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p,.none{color:var(--soft);margin:.3rem 0}
nav{display:flex;flex-wrap:wrap;gap:6px}
nav a{color:inherit;text-decoration:none;border:1px solid var(--rule);border-radius:99px;padding:4px 12px;
font-size:.9rem}
nav a:focus-visible,nav a:hover{border-color:var(--c0);color:var(--c0)}
code{overflow-wrap:anywhere}
.badge{margin-left:10px;font-size:.8rem;border:1px solid var(--c1);color:var(--c1);border-radius:99px;padding:2px 10px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:12px;margin-top:.8rem}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px}
figcaption{font-weight:600;font-size:.95rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:12px}
svg .y{text-anchor:end}svg .x{text-anchor:middle}
.grid{stroke:var(--rule);stroke-width:1;fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1)}path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}path.c4{stroke:var(--c4)}path.c5{stroke:var(--c5)}
circle.c0{fill:var(--c0)}circle.c1{fill:var(--c1)}circle.c2{fill:var(--c2)}circle.c3{fill:var(--c3)}circle.c4{fill:var(--c4)}circle.c5{fill:var(--c5)}
i.c0{background:var(--c0)}i.c1{background:var(--c1)}i.c2{background:var(--c2)}i.c3{background:var(--c3)}i.c4{background:var(--c4)}i.c5{background:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:14px;font-size:.85rem;color:var(--soft)}
.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle}
.tables{display:flex;flex-wrap:wrap;gap:0 56px}.tables>div{max-width:100%}.tables>div.whole{flex-basis:100%}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.n{text-align:right}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px;white-space:pre-wrap;
overflow-wrap:anywhere;font-size:.85rem;margin:.4rem 0}
.asked{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px;margin:.5rem 0}
.asked p{color:var(--fg);font-weight:600;margin:0 0 .4rem;white-space:pre-wrap;overflow-wrap:anywhere}
.asked dl{display:grid;grid-template-columns:fit-content(14rem) 1fr;gap:6px 18px;margin:0;font-size:.9rem}
.asked dt{color:var(--soft);overflow-wrap:anywhere}
.asked small{display:block;font-size:.8rem;font-variant-numeric:tabular-nums}
.asked dd{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
@media(max-width:600px){.asked dl{grid-template-columns:1fr;gap:0}.asked dd{margin:0 0 .6rem}
.asked small{display:inline;margin-left:.7em}}
mark{background:var(--mark);color:inherit;border-radius:3px}
summary{cursor:pointer;color:var(--soft);margin-top:1rem}
li{overflow-wrap:anywhere}
""".replace("\n", "")
