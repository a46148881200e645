/* The linked table: sort, filter, select, copy. It holds all rows as columns and puts only some of them into the page at a time. */
"use strict";

Craft.STEP = 100;  // rows added to the page at a time

Craft.millions = function (count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return String(count);
  if (count < 1e6) return (count / 1e6).toFixed(3) + "M";
  return String(Number((count / 1e6).toPrecision(3))) + "M";
};

Craft.shown = function (column, value) {
  if (value === null || value === undefined) return "";
  if (column.kind === "score") return value.toFixed(1);
  if (column.kind === "count") return value.toLocaleString("en-US");
  if (column.kind === "number" && typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  return String(value);
};

/* The best value of each column among some rows, for columns in which one way is better. */
Craft.best = function (columns, rows) {
  return columns.map(column => {
    if (!column.better || rows.length < 2) return null;
    const values = rows.map(row => column.values[row]).filter(value => value !== null);
    if (!values.length) return null;
    return values.reduce((a, b) => column.better === "maximize" ? Math.max(a, b) : Math.min(a, b));
  });
};

Craft.copies = {
  CSV(table, rows) {
    // a text that a spreadsheet would take for a formula is quoted as text
    const cell = value => {
      let text = value === null || value === undefined ? "" : String(value);
      if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
      return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    };
    const ends = table.low && table.low.some(value => value !== null) ? [["score_low", table.low], ["score_high", table.high]] : [];
    const names = [...table.columns.map(column => column.key.replace(/^[pm]\./, "")), ...ends.map(end => end[0])];
    const lines = rows.map(row => [...table.columns.map(column => column.values[row]), ...ends.map(end => end[1][row])].map(cell).join(","));
    return [names.map(cell).join(","), ...lines].join("\n") + "\n";
  },

  Markdown(table, rows) {
    const best = Craft.best(table.columns, rows);
    const escape = text => text.replace(/([\\|`*_<>\[\]])/g, "\\$1").replace(/\s+/g, " ");
    const lines = rows.map(row => table.columns.map((column, index) => {
      const text = escape(Craft.cell(table, column, row));
      return best[index] !== null && column.values[row] === best[index] ? `**${text}**` : text;
    }));
    const rule = table.columns.map(column => column.kind === "text" ? "---" : "---:");
    return [table.columns.map(column => escape(column.label)), rule, ...lines].map(cells => `| ${cells.join(" | ")} |`).join("\n") + "\n";
  },

  /* As the paper sets its tables: booktabs, parameters in millions, scores with one digit, the best of each column bold. */
  LaTeX(table, rows) {
    const special = {"\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "#": "\\#", "%": "\\%", "_": "\\_", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "·": "$\\cdot$"};
    const escape = text => text.replace(/[\\{}$&#%_~^<>·]/g, sign => special[sign]).replace(/\s+/g, " ");
    const best = Craft.best(table.columns, rows);
    const lines = rows.map(row => table.columns.map((column, index) => {
      const value = column.values[row];
      if (value === null || value === undefined) return "--";
      const text = column.key === "m.trainable_parameters" ? Craft.millions(value) : escape(Craft.cell(table, column, row, true));
      return best[index] !== null && value === best[index] ? `\\textbf{${text}}` : text;
    }).join(" & ") + " \\\\");
    const align = table.columns.map(column => column.kind === "text" ? "l" : column.kind === "score" ? "c" : "r").join(" ");
    const heads = table.columns.map(column => `\\textbf{${escape(column.label)}}`).join(" & ");
    return ["\\begin{tabular}{@{}" + align + "@{}}", "\\toprule", heads + " \\\\", "\\midrule", ...lines, "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  },
};

/* A cell's text; a score with an interval says how wide it is. */
Craft.cell = function (table, column, row, tex) {
  const value = column.values[row];
  const text = Craft.shown(column, value);
  if (column.key !== "m.score" || !table.low || table.low[row] === null || value === null) return text;
  const half = Math.max(table.high[row] - value, value - table.low[row]).toFixed(1);
  return tex ? text : `${text} ± ${half}`;
};

Craft.copyText = async function (text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // frames and old browsers without a clipboard: the selection of a hidden field is copied instead
    const field = Craft.element("textarea", {class: "visually-hidden", "aria-hidden": "true"});
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied) throw new Error("the browser does not allow copying");
  }
};

/* `on` has pin(id), ring(id or null), choose(ids or null). */
Craft.Table = class {
  constructor(holder, on) {
    this.holder = holder;
    this.on = on;
    this.query = "";
    this.sort = null;
    this.selected = null;
    this.only = false;
    this.limit = Craft.STEP;
    this.build();
  }

  build() {
    const make = Craft.element;
    this.shared = make("details", {class: "shared", hidden: true}, make("summary", {}), make("dl", {}));
    this.search = make("input", {type: "search", placeholder: "Filter: words, or learning_rate>0.001", "aria-label": "Filter the table", oninput: () => { this.query = this.search.value; this.limit = Craft.STEP; this.render(); }});
    this.chip = make("button", {type: "button", class: "chip", hidden: true, onclick: () => this.on.choose(null)});
    this.said = make("span", {class: "said", role: "status"});
    const copies = Object.keys(Craft.copies).map(kind => make("button", {type: "button", class: "quiet", onclick: () => this.copy(kind)}, "Copy " + kind));
    this.tools = make("div", {class: "tools"}, this.search, this.chip, ...copies, this.said);
    this.head = make("tr", {});
    this.body = make("tbody", {});
    this.table = make("table", {}, make("thead", {}, this.head), this.body);
    this.more = make("button", {type: "button", class: "quiet", hidden: true, onclick: () => { this.limit += 5 * Craft.STEP; this.render(); }});
    this.count = make("p", {class: "note", role: "status"});
    this.holder.append(this.shared, this.tools, make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table"}, this.table), this.count, this.more);
  }

  update(table) {
    this.data = table;
    this.index = new Map(table.id.map((id, row) => [id, row]));
    this.front = new Set(table.front || []);
    // words to filter by are put together once, not at every key
    this.words = table.id.map((_, row) => table.columns.map(column => String(column.values[row] ?? "")).join("\u0001").toLowerCase());
    this.tools.hidden = Boolean(table.plain);
    this.shared.hidden = !(table.shared && table.shared.length);
    if (!this.shared.hidden) {
      this.shared.querySelector("summary").textContent = `The same in all: ${table.shared.slice(0, 4).map(([name, value]) => `${name} ${value}`).join(", ").slice(0, 160)}${table.shared.length > 4 ? ", …" : ""}`;
      this.shared.querySelector("dl").replaceChildren(...table.shared.flatMap(([name, value]) => [Craft.element("dt", {}, name), Craft.element("dd", {}, value)]));
    }
    this.render();
  }

  setSelection(ids, only) {
    this.selected = ids;
    this.only = Boolean(ids) && only;
    this.limit = Craft.STEP;
    this.render();
  }

  /* Rows that are shown, in order. A word must occur somewhere; name>number compares a column. */
  rows() {
    const table = this.data;
    const tests = this.query.toLowerCase().split(/\s+/).filter(Boolean).map(word => {
      const parts = /^([^<>=]+)(<=|>=|<|>|=)(.+)$/.exec(word);
      const column = parts && table.columns.find(one => [one.key, one.key.slice(2), one.label].some(name => name.toLowerCase() === parts[1]));
      if (!column) return row => this.words[row].includes(word);
      const limit = Number(parts[3]);
      const compare = {"<": value => value < limit, ">": value => value > limit, "<=": value => value <= limit, ">=": value => value >= limit, "=": value => value === limit || String(value).toLowerCase() === parts[3]}[parts[2]];
      return row => column.values[row] !== null && compare(column.values[row]);
    });
    let rows = table.id.map((_, row) => row);
    if (this.only) rows = rows.filter(row => this.selected.has(table.id[row]));
    if (tests.length) rows = rows.filter(row => tests.every(test => test(row)));
    const column = this.sort && table.columns.find(one => one.key === this.sort.key);
    if (column) {
      const collator = Craft.collator = Craft.collator || new Intl.Collator(undefined, {numeric: true});
      const way = this.sort.down ? -1 : 1;
      rows.sort((a, b) => {
        const x = column.values[a], y = column.values[b];
        if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last either way
        return way * (typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y)));
      });
    }
    return rows;
  }

  render() {
    const table = this.data;
    if (!table) return;
    const rows = this.rows();
    const best = Craft.best(table.columns, rows);
    const active = document.activeElement && this.holder.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    this.head.replaceChildren(...table.columns.map(column => this.heading(column)));
    this.body.replaceChildren(...rows.slice(0, this.limit).map(row => this.row(row, best)));
    const left = rows.length - this.limit;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${Math.min(left, 5 * Craft.STEP)} more of ${left}`;
    this.count.textContent = table.plain ? "" : `${Math.min(rows.length, this.limit)} of ${rows.length} configurations shown${rows.length < table.id.length ? `, ${table.id.length} in all` : ""}. ★ is on the front; ± half of the 95 % interval over seeds.`;
    this.chip.hidden = !this.selected;
    this.chip.textContent = this.selected ? `${this.selected.size} selected  ✕ clear` : "";
    if (active) { const again = [...this.holder.querySelectorAll("[data-focus]")].find(one => one.dataset.focus === active); if (again) again.focus({preventScroll: true}); }
  }

  heading(column) {
    const sorted = this.sort && this.sort.key === column.key ? (this.sort.down ? "descending" : "ascending") : "none";
    const sign = {descending: " ↓", ascending: " ↑", none: ""}[sorted];
    const button = Craft.element("button", {type: "button", title: column.label, "data-focus": "head " + column.key, onclick: () => {
      const numeric = column.kind !== "text";
      this.sort = sorted === "none" ? {key: column.key, down: numeric && column.better !== "minimize"} : {key: column.key, down: !this.sort.down};
      this.render();
    }}, column.label + sign);
    return Craft.element("th", {scope: "col", "aria-sort": sorted, class: column.kind === "text" ? "" : "num"}, button);
  }

  row(row, best) {
    const table = this.data;
    const id = table.id[row];
    const chosen = Boolean(this.selected && this.selected.has(id));
    const cells = table.columns.map((column, index) => {
      const text = Craft.cell(table, column, row);
      const kind = column.kind === "text" ? (table.plain ? "wrap" : "") : "num";
      const cell = Craft.element("td", {class: kind + (best[index] !== null && column.values[row] === best[index] ? " best" : "")});
      if (column.key === "label") {
        cell.append(Craft.element("button", {type: "button", class: "name", title: text, "data-focus": "row " + id, onclick: () => this.on.pin(id), onfocus: () => this.on.ring(id), onblur: () => this.on.ring(null)}, text));
        if (this.front.has(id)) cell.append(Craft.element("span", {class: "star", title: "on the front", role: "img", "aria-label": "on the front"}, "★"));
      } else {
        cell.textContent = text;
        if (text.length > 30) cell.title = text;
      }
      return cell;
    });
    const line = Craft.element("tr", {class: (chosen && !this.only ? "chosen" : "") + (this.pinned === id ? " pinned" : "")}, ...cells);
    if (!table.plain) {
      line.addEventListener("mouseenter", () => this.on.ring(id));
      line.addEventListener("mouseleave", () => this.on.ring(null));
    }
    return line;
  }

  async copy(kind) {
    const rows = this.rows();
    try {
      await Craft.copyText(Craft.copies[kind](this.data, rows));
      this.said.textContent = `${rows.length} rows copied as ${kind}`;
    } catch (error) {
      this.said.textContent = `Not copied: ${error.message}`;
    }
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => { this.said.textContent = ""; }, 4000);
  }
};
