"""What a browser makes of a report, and what the report holds.

    report_page.py data PAGE              prints the page's JSON
    report_page.py dom DUMP CONDITION...  checks the DOM that `chromium --dump-dom` printed: each condition is a Python
                                          expression of `dom`"""

import html.parser
import json
import pathlib
import re
import sys


def data(path):
    page = pathlib.Path(path).read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="runs">(.*?)</script>', page, re.S)[1])


class Dom(html.parser.HTMLParser):
    """Elements as (name, attributes, text inside), in order."""

    VOID = {"meta", "link", "input", "br", "img"}

    def __init__(self, text):
        super().__init__()
        self.all, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.all.append([tag, dict(attrs), ""])
        if tag not in self.VOID:
            self.open.append(self.all[-1])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, text):
        if not any(e[0] in ("script", "style") for e in self.open):
            for e in self.open:
                e[2] += text

    def find(self, tag=None, **attributes):
        return [e for e in self.all if tag in (None, e[0])
                and all(set(v.split()) <= set((e[1].get(k.rstrip("_").replace("_", "-")) or "").split())
                        for k, v in attributes.items())]

    @property
    def text(self):
        return self.find("body")[0][2]

    @property
    def charts(self):
        return [e[1]["data-chart"] for e in self.find("section", class_="chart")]

    @property
    def levels(self):
        """Of each chart what stands at its y axis."""
        found = {}
        for e in self.all:
            if e[0] == "section" and "data-chart" in e[1]:
                chart = found.setdefault(e[1]["data-chart"], [])
            elif e[0] == "text" and e[1].get("class") == "level":
                chart.append(e[2])
        return found

    def has(self, *words):
        return all(word in self.text for word in words)


if sys.argv[1] == "data":
    print(json.dumps(data(sys.argv[2])))
else:
    dom = Dom(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
    for condition in ["dom.find('html')[0][1].get('data-state') == 'drawn'", "not dom.find(class_='error')",
                      "not re.search('NaN|undefined|Infinity', dom.text)",
                      "all(len(texts) >= 2 and len(set(texts)) == len(texts) for texts in dom.levels.values())",
                      "all(e[1].get(a, 'data:').startswith('data:') for e in dom.all for a in ('src', 'href'))", *sys.argv[3:]]:
        if not eval(condition):
            print(condition, "is not so; charts:", dom.charts, "text:", dom.text[:3000])
            sys.exit(1)
