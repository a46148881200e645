/* Values as text: in a cell, and in the tables that are copied out (CSV, Markdown, LaTeX). */
"use strict";

Craft.thousands = new Intl.NumberFormat("en-US");  // made once: toLocaleString makes one at every call

/* An amount by its kind, as `orchestrator.results.metrics.amount` writes it. */
Craft.shown = function (column, value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const fixed = digits => value.toFixed(digits).replace(/^-(0\.0+)$/, "$1"), short = number => String(Number(number.toPrecision(3)));
  if (column.kind === "score" || column.kind === "chance" || typeof column.digits === "number") return fixed(column.digits ?? 2);
  if (column.kind === "bytes") {
    const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
    return power ? `${(value / 1024 ** power).toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}` : `${Math.round(value)} B`;
  }
  if (column.kind === "seconds") {
    if (value < 10) return value >= 1 ? `${short(value)} s` : `${short(1000 * value)} ms`;
    const whole = Math.floor(value + 0.5), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60), two = number => String(number).padStart(2, "0");
    if (hours >= 24) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
    return hours ? `${hours} h ${two(minutes % 60)} min` : minutes ? `${minutes} min ${two(whole % 60)} s` : `${whole} s`;
  }
  if (column.kind === "share") return (value < 0.1 ? short(100 * value) : Math.round(100 * value)) + " %";
  if (column.kind === "count") return Craft.thousands.format(value);
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
};

/* A test for cells: whether a cell has the best value of its column among some rows, where the column has a better direction.
   A configuration that is not complete takes no part, because its value is over fewer tasks or seeds. */
Craft.best = function (table, rows) {
  const ranked = rows.filter(row => table.complete && table.complete[row]);
  const best = table.columns.map(column => {
    if (!column.better || ranked.length < 2) return null;
    const values = ranked.map(row => column.values[row]).filter(value => value !== null);
    if (!values.length) return null;
    return values.reduce((a, b) => column.better === "maximize" ? Math.max(a, b) : Math.min(a, b));
  });
  return (index, row) => best[index] !== null && table.complete[row] && table.columns[index].values[row] === best[index];
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
    const best = Craft.best(table, rows);
    const escape = text => text.replace(/([\\|`*_<>\[\]])/g, "\\$1").replace(/\s+/g, " ");
    const lines = rows.map(row => table.columns.map((column, index) => {
      const text = escape(Craft.cell(table, column, row));
      return best(index, row) ? `**${text}**` : text;
    }));
    const rule = table.columns.map(column => column.kind === "text" ? "---" : "---:");
    return [table.columns.map(column => escape(column.label)), rule, ...lines].map(cells => `| ${cells.join(" | ")} |`).join("\n") + "\n";
  },

  /* As papers set their tables: booktabs, the best of each column bold. */
  LaTeX(table, rows) {
    const special = {"\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "#": "\\#", "%": "\\%", "_": "\\_", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "·": "$\\cdot$", "±": "$\\pm$"};
    const escape = text => text.replace(/[\\{}$&#%_~^<>·±]/g, sign => special[sign]).replace(/\s+/g, " ");
    const best = Craft.best(table, rows);
    const lines = rows.map(row => table.columns.map((column, index) => {
      const value = column.values[row];
      if (value === null || value === undefined) return "--";
      const text = escape(Craft.shown(column, value));
      return (best(index, row) ? `\\textbf{${text}}` : text) + escape(Craft.spread(table, column, row));
    }).join(" & ") + " \\\\");
    const align = table.columns.map(column => column.kind === "text" ? "l" : column.kind === "score" ? "c" : "r").join(" ");
    const heads = table.columns.map(column => `\\textbf{${escape(column.label)}}`).join(" & ");
    return ["\\begin{tabular}{@{}" + align + "@{}}", "\\toprule", heads + " \\\\", "\\midrule", ...lines, "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  },
};

/* A score's interval as text: its half, or both ends where it ends at a bound of the metric. */
Craft.spread = function (table, column, row) {
  const value = column.values[row], low = table.low && table.low[row], high = table.high && table.high[row];
  if (column.key !== "m.score" || value === null || typeof low !== "number") return "";
  if (Math.abs(high + low - 2 * value) > 0.01) return ` (${[low, high].map(end => end.toFixed(1).replace(/\.0$/, "")).join(" to ")})`;
  return ` ± ${((high - low) / 2).toFixed(2)}`;
};

/* A cell's text; a score with an interval says how wide it is. */
Craft.cell = function (table, column, row) {
  return Craft.shown(column, column.values[row]) + Craft.spread(table, column, row);
};

/* Whether the text is on the clipboard now. */
Craft.copyText = async function (text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // frames and old browsers without a clipboard: the selection of a hidden field is copied instead
    const field = Craft.element("textarea", {class: "visually-hidden", "aria-hidden": "true"});
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
};
