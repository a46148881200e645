/* Values as text: in a cell, and in the tables that are copied out (CSV, Markdown, LaTeX). */
"use strict";

Craft.thousands = new Intl.NumberFormat("en-US");  // made once: toLocaleString makes one at every call

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
    const columns = table.columns.flatMap(column => {
      const name = column.key.replace(/^[pm]\./, "");
      return [[name, column.values], ...["low", "high"].filter(end => column[end]).map(end => [`${name}_${end}`, column[end]])];
    });
    const lines = rows.map(row => columns.map(([, values]) => cell(values[row])).join(","));
    return [columns.map(([name]) => cell(name)).join(","), ...lines].join("\n") + "\n";
  },

  Markdown(table, rows) {
    const best = Craft.best(table, rows);
    const escape = text => text.replace(/([\\|`*_<>\[\]])/g, "\\$1").replace(/\s+/g, " ");
    const lines = rows.map(row => table.columns.map((column, index) => {
      const text = escape(Craft.cell(column, row));
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
      const [value, ends = ""] = Craft.cell(column, row).split(/(?= [±(])/);
      return !value ? "--" : (best(index, row) ? `\\textbf{${escape(value)}}` : escape(value)) + escape(ends);
    }).join(" & ") + " \\\\");
    const align = table.columns.map(column => column.kind === "text" ? "l" : column.kind === "score" ? "c" : "r").join(" ");
    const heads = table.columns.map(column => `\\textbf{${escape(column.label)}}`).join(" & ");
    return ["\\begin{tabular}{@{}" + align + "@{}}", "\\toprule", heads + " \\\\", "\\midrule", ...lines, "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  },
};

/* A cell's text, with its interval if it has one. */
Craft.cell = function (column, row) {
  return column.texts ? column.texts[row] : String(column.values[row] ?? "");
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
