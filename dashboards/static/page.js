/* The page: panels in their sections, one selection for all of them, the card of the configuration in focus, two pinned
   configurations side by side, and where the data come from (the server, or the file). */
"use strict";

Craft.POLL_MS = 2000;

/* Asks the server; an answer that has not changed (ETag) is null. */
Craft.LiveSource = class {
  constructor() {
    this.etags = new Map();
    this.sweeps = new URLSearchParams(location.search).getAll("sweep");
  }

  async ask(path) {
    const known = this.etags.get(path);
    const answer = await fetch(path, {headers: known ? {"If-None-Match": known} : {}, cache: "no-store"});
    if (answer.status === 304) return null;
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.detail || answer.statusText);
    this.etags.set(path, answer.headers.get("ETag"));
    return content;
  }

  query() { return this.sweeps.map(name => "sweep=" + encodeURIComponent(name)).join("&"); }
  state() { return this.ask("api/state?" + this.query()); }
  panel(name) { return this.ask(`api/panel/${name}?${this.query()}`); }

  choose(names) {
    this.sweeps = names;
    this.etags.clear();
    history.replaceState(null, "", names.length ? "?" + this.query() : location.pathname);
  }
};

/* Where commands work, if that is known. */
Craft.place = folder => folder ? Craft.element("p", {class: "hint"}, "Run in ", Craft.element("code", {}, folder)) : "";

/* A command to read and to copy; the page runs none. */
Craft.command = function (purpose, text) {
  const make = Craft.element;
  const button = make("button", {type: "button", class: "quiet", "aria-label": `Copy: ${text}`, onclick: async () => {
    button.textContent = await Craft.copyText(text) ? "Copied" : "Select the text";
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  }}, "Copy");
  return make("div", {class: "command"}, make("span", {}, purpose), button, make("code", {}, text));
};

Craft.Page = class {
  constructor(source, live) {
    this.source = source;
    this.live = live;
    this.panels = new Map();
    this.shown = {};
    this.selected = null;
    this.details = new Map();
    this.main = document.getElementById("main");
    this.tip = document.getElementById("tip");
    this.liveMark = document.getElementById("live");
    this.theme();
  }

  theme() {
    const root = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let asked = null;
    try { asked = localStorage.getItem("craft-theme"); } catch { /* frames without storage forget the choice */ }
    const apply = async () => {
      root.dataset.theme = asked || (dark.matches ? "dark" : "light");
      for (const panel of this.panels.values()) if (panel.figure && panel.figure.drawn) await panel.figure.update(panel.figure.spec);
    };
    dark.addEventListener("change", apply);
    document.getElementById("theme").addEventListener("click", () => {
      asked = root.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("craft-theme", asked); } catch { /* as above */ }
      apply();
    });
    apply();
  }

  /* Shows the state, which a live page asks for again and again. */
  async start() {
    do {
      if (document.hidden && this.lastState) continue;
      try {
        const state = await this.source.state();
        this.takeState(state || this.lastState);
        if (state) await this.refresh();
      } catch (error) {
        this.liveMark.className = "live off";
        this.liveMark.textContent = error instanceof TypeError ? "The server does not answer; trying again" : error.message;
      }
    } while (this.live && await new Promise(wake => setTimeout(wake, Craft.POLL_MS, true)));
  }

  takeState(state) {
    this.lastState = state;
    const names = state.sweeps.filter(sweep => sweep.shown).map(sweep => sweep.name);
    if (this.live && !this.source.sweeps.length && names.length) this.source.choose(names);
    const title = document.getElementById("title"), waiting = document.getElementById("waiting");
    title.textContent = title.title = names.length ? names.join(" · ") : "CRAFT sweeps";
    document.title = `${title.textContent} · CRAFT sweeps`;
    document.getElementById("foot").textContent = state.foot || "";
    this.liveMark.className = "live" + (this.live && state.running ? " on" : "");
    this.liveMark.textContent = state.status || "";
    this.answer(state.answers || []);
    if (this.live) this.picker(state.sweeps);
    if (waiting && state.message) waiting.textContent = state.message;
    if (!state.message && !this.panels.size) this.build(state);
  }

  /* Whether a part of the page has other content than when this was asked last. */
  changed(part, content) {
    const before = this.shown[part];
    this.shown[part] = JSON.stringify(content);
    return this.shown[part] !== before;
  }

  answer(answers) {
    const holder = document.getElementById("answer"), make = Craft.element;
    if (!this.changed("answer", answers)) return;
    holder.hidden = !answers.length;
    holder.replaceChildren(...answers.flatMap(({sweep, text, folder}) => [
      ...(answers.length > 1 ? [make("h2", {}, sweep)] : []),
      ...text.split("\n").map(line => line.startsWith("  ") ? make("code", {}, line.trim()) : make("p", {}, line)),
      text.includes("\n  ") ? Craft.place(folder) : "",
    ]));
  }

  picker(sweeps) {
    const holder = document.getElementById("picker"), make = Craft.element;
    if (!this.changed("picker", sweeps)) return;
    holder.hidden = sweeps.length < 2;
    holder.querySelector("summary").textContent = `${sweeps.filter(sweep => sweep.shown).length} of ${sweeps.length} sweeps`;
    document.getElementById("picker-list").replaceChildren(...sweeps.map(sweep => make("label", {},
      make("input", {type: "checkbox", checked: sweep.shown, onchange: event => this.pick(sweep.name, event.target.checked)}), make("span", {}, sweep.name), make("small", {}, sweep.status))));
  }

  async pick(name, wanted) {
    const names = this.lastState.sweeps.filter(sweep => sweep.name === name ? wanted : sweep.shown).map(sweep => sweep.name);
    if (!names.length) return;
    this.source.choose(names);
    this.choose(null);
    this.details.clear();
    this.pinned = this.first = this.beside = null;
    try {
      this.takeState(await this.source.state());
      await this.refresh();
    } catch (error) { this.liveMark.textContent = error.message; }
  }

  build(state) {
    const make = Craft.element;
    this.main.replaceChildren();
    const links = [];
    for (const [section, title] of Object.entries(state.sections)) {
      const grid = make("div", {class: "grid"});
      this.main.append(make("section", {class: "section", id: section, "aria-label": title}, make("h2", {}, title), grid));
      links.push(make("a", {href: "#" + section}, title));
      for (const meta of state.panels.filter(panel => panel.section === section)) grid.append(this.frame(meta));
    }
    document.getElementById("nav").replaceChildren(...links);
  }

  /* The front comes first: people look at it first, and its table holds the text of tooltips. The others follow one by one: those on
     the screen, and at first all, so that a print of the page has them. What is below the screen is asked for again when it comes
     into sight (importance and curves take the server time). */
  async refresh() {
    const panels = [...this.panels.values()], isFirst = panel => panel.meta.section === "front";
    await Promise.all(panels.filter(isFirst).map(panel => this.fetch(panel)));
    if (!this.watcher && panels.length) this.watch();
    for (const panel of panels.filter(panel => !isFirst(panel))) {
      panel.late = Boolean(panel.turn) && !panel.onScreen;
      if (!panel.late) await this.fetch(panel);
    }
  }

  watch() {
    this.watcher = new IntersectionObserver(entries => {
      for (const entry of entries) {
        const panel = this.panels.get(entry.target.dataset.panel);
        panel.onScreen = entry.isIntersecting;
        if (!panel.onScreen) continue;
        if (panel.late) { panel.late = false; this.fetch(panel); }
        if (panel.figure && panel.figure.selected !== this.selected) panel.figure.select(this.selected);
      }
    }, {rootMargin: "250px"});
    for (const panel of this.panels.values()) this.watcher.observe(panel.box);
  }

  frame(meta) {
    const make = Craft.element;
    const choices = make("div", {class: "choices"});
    const content = make("div", {});
    const note = make("p", {class: "note"});
    const help = make("details", {class: "help", hidden: true}, make("summary", {"aria-label": "What this shows"}, "?"), make("p", {}));
    const heading = make("div", {class: "heading"}, make("h3", {}, meta.title, help), make("p", {class: "about"}, meta.about));
    const box = make("article", {class: "panel" + (meta.wide ? " wide" : ""), "data-panel": meta.name, "aria-label": meta.title}, make("header", {}, heading, choices), content, note);
    const panel = {meta, box, choices, content, note, help, onScreen: meta.section === "front"};
    this.panels.set(meta.name, panel);
    content.append(make("p", {class: "empty"}, "Loading …"));
    return box;
  }

  /* Asks for a panel's spec and shows it, one time after the other. */
  fetch(panel) {
    panel.turn = Promise.resolve(panel.turn).then(async () => {
      try {
        const spec = await this.source.panel(panel.meta.name);
        if (spec) await this.show(panel, spec).catch(error => this.empty(panel, `This panel could not be drawn: ${error.message}`));
      } catch (error) {
        this.source.etags?.clear();  // so that the state, and then the panel, are sent again
        this.empty(panel, error instanceof TypeError ? "The server does not answer." : error.message);
      }
    });
    return panel.turn;
  }

  /* A panel with nothing to show is one line, or nothing. */
  empty(panel, why, hidden) {
    panel.box.classList.add("bare");
    panel.box.hidden = Boolean(hidden);
    panel.help.hidden = true;
    panel.figure = panel.table = panel.pairs = null;
    panel.choices.replaceChildren();
    panel.note.textContent = "";
    panel.content.replaceChildren(Craft.element("p", {class: "empty"}, why));
  }

  async show(panel, spec) {
    if (spec.empty) { this.empty(panel, spec.empty, spec.hidden); return; }
    panel.box.classList.remove("bare");
    panel.box.hidden = false;
    panel.note.textContent = spec.note || "";
    panel.help.hidden = !spec.help;
    panel.help.lastChild.textContent = spec.help || "";
    for (const [id, about] of Object.entries(spec.details || {})) this.details.set(id, about);
    if (spec.table) this.showTable(panel, spec.table);
    else if (spec.pairs) this.showPair(panel, spec.pairs);
    else await this.showFigure(panel, spec);
  }

  showTable(panel, table) {
    if (!panel.table) {
      panel.content.replaceChildren();
      panel.table = new Craft.Table(panel.content, {pin: id => this.pin(id, false), ring: id => this.ring(id), choose: ids => this.choose(ids)});
      if (!table.plain) this.table = panel.table;
    }
    panel.table.selected = table.plain ? null : this.selected;
    panel.table.update(table);
    if (!table.plain) this.showPair();
    if (!table.plain && this.pinned) this.card(this.pinned);
    else if (!table.plain) this.showFirst();
  }

  async showFigure(panel, spec) {
    if (!panel.figure) {
      const keys = spec.figure.data.some(Craft.walks) ? " The arrow keys go from point to point, Enter keeps one, Space selects it." : "";
      const plot = Craft.element("div", {class: "plot", role: "group", "aria-label": `${panel.meta.title}: ${panel.meta.about} The table of configurations holds the same values.${keys}`});
      panel.content.replaceChildren(plot);
      if (panel.meta.name === "front") {
        this.cardBox = Craft.element("aside", {class: "card", "aria-label": "The configuration in focus", "aria-live": "polite"}, Craft.element("p", {class: "hint"}, "Point at a configuration to see what it is; click it, or its name in the table, to keep it here."));
        panel.content.className = "with-card";
        panel.content.append(this.cardBox);
      }
      const on = {hover: (id, event) => this.hover(id, event), leave: () => this.leave(), click: id => this.pin(id, true), keep: id => this.pin(id, false), select: ids => this.choose(ids)};
      panel.figure = new Craft.Figure(plot, on, panel.meta.wide);
    }
    panel.figure.selected = this.selected;
    panel.figure.kept = panel.meta.name === "front" ? this.pinned : this.inFocus;
    panel.figure.choose(spec);
    this.choices(panel, spec);
    await panel.figure.update(spec);
    if (spec.first && !this.pinned) {
      this.first = spec.first;
      this.showFirst();
    }
  }

  /* The configuration whose card is shown. */
  get inFocus() { return this.pinned || (this.first && this.first[0]) || null; }

  /* Until a configuration is pinned, the card shows the one that the panel names as the first to see. */
  showFirst() {
    if (this.first && !this.pinned && this.card(this.first[0], this.first[1])) this.ring(null);
  }

  choices(panel, spec) {
    const make = Craft.element;
    if (!this.changed(panel.meta.name, spec.choices) && panel.choices.childElementCount) return;
    panel.choices.replaceChildren(...(spec.choices || []).filter(choice => choice.options.length > 1).map(choice => {
      const box = make("select", {name: choice.name, onchange: () => { panel.figure.chosen[choice.name] = box.value; this.drawing = panel.figure.update(panel.figure.spec); }},
        ...choice.options.map(option => make("option", {value: option.value}, option.label.slice(0, 80))));
      box.value = panel.figure.chosen[choice.name];
      return make("label", {}, choice.label, box);
    }));
  }

  choose(ids) {
    this.selected = ids;
    for (const panel of this.panels.values()) if (panel.figure && panel.onScreen) panel.figure.select(ids);
    if (this.table) Object.assign(this.table, {selected: ids}).render();
  }

  /* What is known of a configuration: [title, [[name, value], ...], row]. */
  about(id) {
    const own = this.details.get(id);
    if (own) return [own.title, own.lines, null, []];
    const table = this.table && this.table.data;
    const row = table ? this.table.index.get(id) : undefined;
    if (row === undefined) return null;
    const known = table.columns.filter(column => column.key !== "label" && column.values[row] !== null && column.values[row] !== undefined);
    const lines = more => known.filter(column => Boolean(column.more) === more).map(column => [column.label, Craft.cell(column, row)]);
    return [table.label[row], lines(false), row, [...lines(true), ...table.shared]];
  }

  lines(lines) {
    return Craft.element("dl", {}, ...lines.flatMap(([name, value]) => [Craft.element("dt", {}, name), Craft.element("dd", {}, typeof value === "number" ? Craft.thousands.format(value) : value)]));
  }

  hover(id, event) {
    const about = this.about(id);
    if (!about) return;
    const [title, lines, row] = about;
    const same = row === null ? [] : this.table.data.shared.map(([name, value]) => `${name} ${value}`);
    this.tip.replaceChildren(Craft.element("h4", {}, title.slice(0, 200)), this.lines(lines));
    if (same.length) this.tip.append(Craft.element("p", {class: "note"}, "As all: " + same.join(", ").slice(0, 900)));
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    const x = event.clientX + 16 + box.width > innerWidth ? Math.max(4, event.clientX - 16 - box.width) : event.clientX + 16;
    const y = Math.max(4, Math.min(event.clientY + 12, innerHeight - box.height - 4));
    this.tip.style.left = x + "px";
    this.tip.style.top = y + "px";
    this.ring(id);
  }

  leave() {
    this.tip.hidden = true;
    this.ring(null);
  }

  ring(id) {
    const front = this.panels.get("front");
    if (front && front.figure) front.figure.ring(id || this.inFocus);
  }

  pin(id, open) {
    this.pinned = id;
    this.card(id);
    this.showPair();
    this.ring(id);
    for (const panel of this.panels.values()) if (panel.figure) panel.figure.keep(id);
    if (this.table) this.table.pin(id);
    const table = this.table && this.table.data;
    const row = table ? this.table.index.get(id) : undefined;
    // a click with a mouse opens the run; a tap on a touch screen is the only way to see what a point is, so it stays here
    if (open && !this.beside && row !== undefined && table.link[row] && !matchMedia("(hover: none)").matches) window.open(table.link[row], "_blank", "noopener");
  }

  card(id, why) {
    const about = this.about(id);
    if (!about || !this.cardBox) return false;
    const make = Craft.element;
    const [title, lines, row, rest] = about;
    const parts = [why ? make("p", {class: "hint"}, why + ".") : null, make("h4", {}, title)].filter(Boolean);
    if (row !== null) {
      const table = this.table.data;
      if (table.link[row]) parts.push(make("a", {href: table.link[row], target: "_blank", rel: "noopener noreferrer"}, "Show it in MLflow ↗"));
      else parts.push(make("p", {class: "hint"}, "Configuration ", make("code", {}, table.id[row])));
      parts.push(make("button", {type: "button", class: "quiet", "aria-pressed": String(this.beside === id), onclick: () => this.putBeside(id)}, "Compare with another"));
      if (this.beside === id) parts.push(make("p", {class: "hint"}, "Now click another point, or a name in the table."));
    }
    parts.push(this.lines(lines));
    if (rest.length) parts.push(make("details", {}, make("summary", {}, "More"), this.lines(rest)));
    const commands = row === null ? [] : this.table.data.commands[row];
    if (commands.length) parts.push(Craft.place(this.table.data.folder[row]), ...commands.map(command => Craft.command(...command)));
    if (why) parts.push(make("p", {class: "hint"}, "Click a point, or a name in the table, to see another."));
    this.cardBox.replaceChildren(...parts);
    return true;
  }

  /* Keeps a configuration as the first of two; the one that is pinned next is the second. A second press takes it back. */
  putBeside(id) {
    this.beside = this.beside === id ? null : id;
    this.pin(id, false);
    const button = this.cardBox.querySelector("button[aria-pressed]");
    if (button) button.focus();
  }

  showPair(panel = this.panels.get("pair"), pairs = panel && panel.pairs) {
    if (!panel) return;
    panel.pairs = pairs;
    const rows = this.table && this.table.data ? [this.beside, this.pinned].map(id => this.table.index.get(id)) : [];
    panel.box.hidden = !pairs || rows.length < 2 || rows.includes(undefined) || rows[0] === rows[1];
    if (panel.box.hidden) return panel.content.replaceChildren(Craft.element("p", {class: "empty"}, "Press Compare with another at a point."));
    const make = Craft.element, table = this.table.data;
    const places = rows.map(row => pairs.id.indexOf(table.id[row]));
    if (!places.includes(-1) && places[0] > places[1]) for (const list of [rows, places]) list.reverse();
    const [first, second] = rows.map(row => pairs.sides[table.id[row]]);
    const words = first && second && {first: first[0], a: first[1], second: second[0], b: second[1]};
    const said = !words ? pairs.incomplete : places.includes(-1) ? pairs.beyond : pairs.said[places[0]][places[1] - places[0] - 1];
    const columns = table.columns.filter(column => !column.more && column.key !== "label" && rows.some(row => column.values[row] !== null));
    const cells = column => rows.map(row => make("td", {class: column.kind === "text" ? "wrap" : "num"}, Craft.cell(column, row)));
    panel.content.replaceChildren(
      make("p", {class: "said", role: "status"}, said),
      make("div", {class: "scroll"}, make("table", {class: "pair"},
        make("thead", {}, make("tr", {}, make("th", {}), ...rows.map(row => make("th", {scope: "col", class: "wrap"}, table.label[row])))),
        make("tbody", {}, ...columns.map(column => make("tr", {}, make("th", {scope: "row"}, column.label), ...cells(column)))))),
      words ? Craft.command("Compare them, row by row", pairs.command.replace(/\{(\w+)\}/g, (_, name) => words[name])) : "",
      words ? Craft.place(table.folder[rows[0]]) : "",
      make("button", {type: "button", class: "quiet", onclick: () => { this.beside = null; this.pin(this.pinned, false); }}, "Show one again"));
  }
};

/* Text from gzip in base64: how the one-file page carries its data and plotly. */
Craft.inflate = async function (encoded) {
  const bytes = Uint8Array.from(atob(encoded.trim()), sign => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};

/* A promise of plotly. It is by far the largest script, so everything else begins without it. */
Craft.plotly = function () {
  Craft.plotlyComes = Craft.plotlyComes || new Promise((here, failed) => {
    const script = document.createElement("script");
    const packed = document.getElementById("plotly");
    script.addEventListener("load", here);
    script.addEventListener("error", () => failed(new Error("The script that draws could not be loaded. Reload the page.")));
    if (packed) {
      Craft.inflate(packed.textContent).then(text => { script.textContent = text; document.head.append(script); here(); }, failed);
    } else {
      script.src = document.getElementById("plotly-address").href;
      document.head.append(script);
    }
  });
  return Craft.plotlyComes;
};

/* The data come from the file, if it has them, else from the server. */
Craft.begin = async function () {
  const packed = document.getElementById("content");
  let source = packed ? null : new Craft.LiveSource();
  if (packed) {
    try {
      const {state, specs} = JSON.parse(await Craft.inflate(packed.textContent));
      source = {state: async () => state, panel: async name => specs[name]};
    } catch (error) {
      document.getElementById("waiting").textContent = `This page could not be opened (${error.message}); it needs a browser from 2023 or later.`;
      return;
    }
  }
  Craft.plotly().catch(() => {});  // the panel that draws first reports it
  Craft.page = new Craft.Page(source, !packed);
  await Craft.page.start();
};
document.addEventListener("DOMContentLoaded", Craft.begin);
