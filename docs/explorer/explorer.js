// The explorer over all published boards: filters, a table, figures, a comparison of two defenses.
// `results.js` gives the numbers as columns (docs/hooks/boards.py makes it); Observable Plot draws.
"use strict";
(() => {
  const { rows: count, student, columns } = window.privbench;
  const root = document.getElementById("all-boards");

  // ---- the numbers: a cell of a board is a row number --------------------------------------------

  const all = d3.range(count);
  const number = (name) => columns[name];
  const text = (name) => {
    const { texts, at } = columns[name];
    return (row) => texts[at[row]];
  };
  const of = {};
  for (const name of ["board", "dataset", "target", "protocol", "adversary", "defense", "attack",
    "access", "game", "aim", "metric", "mark"]) of[name] = text(name);
  const mean = all.map((row) => d3.mean(number("values")[row]));
  const stronger = (a, b) => (number("higher")[a] ? mean[b] - mean[a] : mean[a] - mean[b]);

  // Filters: the values that a row has. One of the chosen values is enough.
  const one = (name) => (row) => [of[name](row)];
  const several = (name) => (row) => number(name)[row];
  const FILTERS = {
    board: one("board"), game: one("game"), dataset: several("datasets"), target: several("targets"),
    access: one("access"), attack: several("attacks"), defense: several("defenses"),
  };
  const values = {};
  const codes = {}; // of each row: places in `values`
  for (const [name, held] of Object.entries(FILTERS)) {
    values[name] = [...new Set(all.flatMap(held))].sort(d3.ascending);
    const place = new Map(values[name].map((value, i) => [value, i]));
    codes[name] = all.map((row) => held(row).map((value) => place.get(value)));
  }
  const words = all.map((row) => ["board", "dataset", "target", "protocol", "adversary", "defense",
    "attack", "access", "aim", "metric"].map((name) => of[name](row)).join(" ").toLowerCase());

  // ---- the view: what is chosen, kept in the address ---------------------------------------------

  const VIEWS = { table: "Table", front: "Front", roc: "ROC", compare: "Compare" };
  const view = { show: "table", words: "", a: "", b: "", chosen: Object.fromEntries(Object.keys(FILTERS).map((name) => [name, new Set()])) };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    view.show = Object.hasOwn(VIEWS, given.get("show")) ? given.get("show") : "table";
    for (const name of ["words", "a", "b"]) view[name] = given.get(name) ?? "";
    for (const name in FILTERS) view.chosen[name] = new Set(given.getAll(name).filter((value) => values[name].includes(value)));
  };
  const write = () => {
    const told = new URLSearchParams();
    if (view.show !== "table") told.set("show", view.show);
    for (const name of ["words", "a", "b"]) if (view[name]) told.set(name, view[name]);
    for (const name in FILTERS) for (const value of view.chosen[name]) told.append(name, value);
    history.replaceState(null, "", `#${told}`);
  };

  // Rows that all filters but one let through, for its counts; those of no filter left out come last.
  const filter = () => {
    const wanted = view.words.toLowerCase().split(/\s+/).filter(Boolean);
    const names = Object.keys(FILTERS);
    const asked = names.map((name) => {
      const places = values[name].flatMap((value, i) => (view.chosen[name].has(value) ? [i] : []));
      return view.chosen[name].size ? new Set(places) : null;
    });
    const counts = Object.fromEntries(names.map((name) => [name, values[name].map(() => 0)]));
    const found = [];
    for (const row of all) {
      if (!wanted.every((word) => words[row].includes(word))) continue;
      let missed = -1;
      let misses = 0;
      names.forEach((name, i) => {
        if (asked[i] && !codes[name][row].some((place) => asked[i].has(place))) [missed, misses] = [i, misses + 1];
      });
      if (misses > 1) continue;
      names.forEach((name, i) => {
        if (!misses || missed === i) for (const place of codes[name][row]) counts[name][place] += 1;
      });
      if (!misses) found.push(row);
    }
    return { found, counts };
  };

  // ---- building blocks ---------------------------------------------------------------------------

  const make = (tag, given = {}, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...inside);
    return made;
  };
  const shown = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const digits = (row) => (number("higher")[row] ? 3 : 4);
  const interval = (row) => {
    const [low, high] = [number("low")[row], number("high")[row]];
    const told = shown(mean[row], digits(row));
    return low === null ? told : `${told} [${shown(low, digits(row))}, ${shown(high, digits(row))}]`;
  };
  const plural = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  const table = (heads, lines, label) => make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": label }, make("table", { className: "numbers" },
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, ...lines.map((line) => make("tr", {}, ...line.map((cell) => make("td", {}, cell)))))));
  const note = (told) => make("p", { className: "note" }, told);
  const width = () => Math.min(900, Math.max(280, result.clientWidth || 600));

  // ---- the controls ------------------------------------------------------------------------------

  const search = make("input", { type: "search", "aria-label": "Search all names", placeholder: "Search all names" });
  const form = make("form", { className: "filters" }, search);
  form.addEventListener("submit", (event) => event.preventDefault());
  const groups = {};
  for (const name of Object.keys(FILTERS)) {
    const boxes = values[name].map((value) => {
      const box = make("input", { type: "checkbox", value });
      const told = make("span", { className: "count" });
      box.addEventListener("change", () => {
        view.chosen[name][box.checked ? "add" : "delete"](value);
        update();
      });
      return { box, told, line: make("label", {}, box, ` ${value} `, told) };
    });
    const head = make("summary", {}, name);
    const list = make("fieldset", {}, make("legend", { className: "hidden" }, name), ...boxes.map((one) => one.line));
    groups[name] = { boxes, head };
    form.append(make("details", {}, head, list));
  }
  const status = make("p", { className: "status", role: "status" });
  const clear = make("button", { type: "button", className: "md-button" }, "Clear filters");
  const download = make("button", { type: "button", className: "md-button" }, "Download csv");
  const tabs = make("div", { className: "tabs", role: "group", "aria-label": "What is shown" });
  const buttons = {};
  for (const [name, title] of Object.entries(VIEWS)) {
    buttons[name] = make("button", { type: "button" }, title);
    buttons[name].addEventListener("click", () => {
      view.show = name;
      update();
    });
    tabs.append(buttons[name]);
  }
  const result = make("section", { "aria-label": "Result" });
  root.replaceChildren(form, make("div", { className: "actions" }, status, clear, download), tabs, result);

  search.addEventListener("input", () => {
    view.words = search.value;
    update();
  });
  clear.addEventListener("click", () => {
    view.words = "";
    for (const name in FILTERS) view.chosen[name].clear();
    update();
  });

  // ---- the table ---------------------------------------------------------------------------------

  const LINES = 100;
  const HEADS = ["attack", "defense", "metric", "mean", "TPR at 1 % FPR", "minus none", "test accuracy", "victim", "board",
    "adversary", "null", "seeds"];
  const victim = (row) => `${of.target(row)} on ${of.dataset(row)}`;
  const line = (row) => [
    `${of.attack(row)} ${of.mark(row)}`, of.defense(row), `${of.metric(row)} (${of.aim(row)})`, interval(row),
    shown(number("tpr")[row]), shown(number("minus")[row]) + (number("certain")[row] ? " †" : ""),
    shown(number("accuracy")[row]), victim(row),
    make("a", { href: `boards/${of.board(row)}.html` }, of.board(row)), of.adversary(row),
    shown(number("null")[row]), String(number("seeds")[row].length),
  ];
  const showTable = (found) => {
    const sorted = [...found].sort((a, b) => d3.ascending(of.aim(a), of.aim(b)) || stronger(a, b));
    const made = table(HEADS, sorted.slice(0, LINES).map(line), "Cells, strongest first");
    result.append(made);
    if (sorted.length > LINES) {
      const more = make("button", { type: "button", className: "md-button" }, `Show all ${plural(sorted.length, "row")}`);
      more.addEventListener("click", () => {
        made.querySelector("tbody").append(...sorted.slice(LINES)
          .map((row) => make("tr", {}, ...line(row).map((cell) => make("td", {}, cell)))));
        more.remove();
        made.focus();
      });
      result.append(more);
    }
    result.append(note("Strongest first. Mean over seeds with Student's 95 % interval; fewer than three seeds have none, fewer "
      + "than five are a draft. †: differs from no defense beyond chance, corrected for its board. °: the defense claims "
      + "nothing about this game. ‡, ¶: does not count, the board says why."));
  };

  // ---- the front ---------------------------------------------------------------------------------

  const counts = (row) => !/[‡¶]/.test(of.mark(row));
  const PANELS = 6;
  const panelOf = (row) => ["board", "aim", "dataset", "target", "protocol", "adversary"].map((name) => of[name](row)).join("\n");
  const showFront = (found) => {
    const counted = found.filter((row) => number("accuracy")[row] !== null && counts(row));
    const panels = [...d3.group(counted, panelOf).values()]
      .map((rows) => [...d3.group(rows, of.defense).values()].map((some) => some.sort(stronger)[0]))
      .filter((points) => points.length > 1)
      .sort((a, b) => b.length - a.length);
    if (!panels.length) return result.append(note("No victim here has two defenses: choose fewer filters."));
    for (const points of panels.slice(0, PANELS)) {
      const [first] = points;
      const best = points.filter((p) => !points.some((q) => q !== p && stronger(p, q) < 0
        && number("accuracy")[q] >= number("accuracy")[p]));
      const told = `${of.board(first)}: ${victim(first)}, ${of.aim(first)}, ${of.adversary(first)} adversary`;
      const place = { x: (row) => number("accuracy")[row], y: (row) => mean[row] };
      result.append(make("h3", {}, told), Plot.plot({
        width: width(), height: 380, marginLeft: 55, marginRight: 30, grid: true,
        ariaLabel: `Worst ${of.metric(first)} against test accuracy: ${told}`,
        x: { label: "test accuracy", labelArrow: "right" },
        y: { label: `worst ${of.metric(first)}`, reverse: !number("higher")[first], zero: false },
        marks: [
          Plot.dot(points, { ...place, fill: (row) => (best.includes(row) ? "#d1603d" : "#3b76c4"), r: 4.5,
            channels: { defense: of.defense, attack: of.attack, seeds: (row) => number("seeds")[row].length }, tip: true }),
        ],
      }), table(["defense", "test accuracy", `worst ${of.metric(first)}`, "by", "no other is better in both"],
        points.sort((p, q) => best.includes(q) - best.includes(p) || place.x(q) - place.x(p) || stronger(q, p))
          .map((row) => [of.defense(row), shown(place.x(row)), interval(row), of.attack(row), best.includes(row) ? "yes" : ""]), told));
    }
    const left = panels.length - PANELS;
    result.append(note("A point is a defense; its height is the strongest of the attacks that are chosen. Lower leaks less, further "
      + "right is more accurate; orange: no other is better in both. A defense that met fewer attacks looks better than it is."
      + (left > 0 ? ` ${plural(left, "more victim")}: choose a board.` : "")));
  };

  // ---- ROC curves --------------------------------------------------------------------------------

  const CURVES = 10;
  const LEAST = 1e-3; // of a rate that is drawn
  const showRoc = (found) => {
    const known = found.filter((row) => of.game(row) === "membership" && number("rates")[row].length && counts(row)).sort(stronger);
    if (!known.length) return result.append(note("No attack on membership with rates is chosen."));
    const rows = known.slice(0, CURVES);
    const name = new Map(rows.map((row, i) => [row, `${i + 1}. ${of.attack(row)} × ${of.defense(row)}, ${victim(row)}, ${of.adversary(row)} (${of.board(row)})`]));
    const at = (row, list) => list.map(([fpr, tpr]) => ({ name: name.get(row), auc: shown(mean[row]), fpr: Math.max(fpr, LEAST), tpr: Math.max(tpr, LEAST) }));
    const fixed = rows.flatMap((row) => at(row, number("rates")[row]));
    const own = rows.flatMap((row) => at(row, number("decided")[row] ? [number("decided")[row]] : []));
    const place = { x: "fpr", y: "tpr", z: "name" };
    result.append(Plot.plot({
      width: width(), height: 440, marginLeft: 55, grid: true, color: { legend: true, domain: rows.map((row) => name.get(row)), columns: "1" },
      ariaLabel: "True-positive rate against false-positive rate",
      x: { type: "log", domain: [LEAST, 1], label: "false-positive rate", tickFormat: "~%" },
      y: { type: "log", domain: [LEAST, 1], label: "true-positive rate", tickFormat: "~%" },
      marks: [
        Plot.line([[LEAST, LEAST], [1, 1]], { strokeDasharray: "4 4", strokeOpacity: 0.6 }),
        Plot.line(fixed, { ...place, stroke: "name", strokeOpacity: 0.5 }),
        Plot.dot(fixed, { ...place, fill: "name", channels: { AUC: "auc" }, tip: true }),
        Plot.dot(own, { ...place, stroke: "name", symbol: "diamond", r: 5 }),
      ],
    }), table(["attack", "defense", "victim", "adversary", "board", "AUC", "TPR at .1 %", "TPR at 1 %", "FPR, TPR of its own decisions"],
      rows.map((row) => [of.attack(row), of.defense(row), victim(row), of.adversary(row), of.board(row), interval(row), shown(number("rare")[row]),
          shown(number("tpr")[row]), number("decided")[row] ? number("decided")[row].map((one) => shown(one)).join(", ") : "–"]), "Points of ROC curves"),
    note("Results of older code keep two points of a ROC curve, at .1 % (where there are nonmembers enough) and 1 % FPR; a line only "
      + "joins them. Diamonds: the attack's own decisions. What is below .1 % is drawn there. Dashed: guessing. Results that do not "
      + `count (‡, ¶) are left out.${known.length > CURVES ? ` The strongest ${CURVES} of ${known.length}.` : ""}`));
  };

  // ---- two defenses, paired by seed --------------------------------------------------------------

  const pair = (a, b) => {
    const theirs = new Map(number("seeds")[b].map((seed, i) => [seed, number("values")[b][i]]));
    const found = number("seeds")[a].flatMap((seed, i) => (theirs.has(seed) ? [number("values")[a][i] - theirs.get(seed)] : []));
    const quantile = student[Math.min(found.length - 2, student.length - 1)];
    const half = found.length > 2 ? quantile * d3.deviation(found) / Math.sqrt(found.length) : null;
    return { a, b, found, mean: d3.mean(found), half };
  };
  const showCompare = (found) => {
    const names = [...new Set(found.map(of.defense))].sort((a, b) => (b === "none") - (a === "none") || d3.ascending(a, b));
    if (names.length < 2) return result.append(note("Fewer than two defenses are chosen."));
    if (!names.includes(view.a)) view.a = names[0];
    if (!names.includes(view.b) || view.b === view.a) view.b = names.find((name) => name !== view.a);
    for (const side of ["a", "b"]) {
      const list = make("select", {}, ...names.map((name) => make("option", { value: name, selected: name === view[side] }, name)));
      list.addEventListener("change", () => {
        view[side] = list.value;
        update();
        result.querySelectorAll("select")[side === "a" ? 0 : 1].focus();
      });
      result.append(make("label", { className: "side" }, side === "a" ? "from " : " to ", list));
    }
    const place = columns.place.at;
    const other = d3.group(found.filter((row) => of.defense(row) === view.a), (row) => place[row]);
    const pairs = found.filter((row) => of.defense(row) === view.b)
      .flatMap((row) => (other.get(place[row]) ?? []).map((from) => pair(row, from)))
      .filter((one) => one.found.length)
      .sort((x, y) => d3.ascending(of.aim(x.a), of.aim(y.a)) || x.mean - y.mean);
    if (!pairs.length) return result.append(note("No attack met both on the same victim and seeds."));
    const SHOWN = 40;
    const label = ({ a }, i) => `${i + 1}. ${of.attack(a)} ${of.mark(a)}, ${of.adversary(a)}, ${of.board(a)}`;
    for (const [aim, some] of d3.group(pairs, ({ a }) => `${of.metric(a)}, ${of.aim(a)}`)) {
      const drawn = some.slice(0, SHOWN).map((one, i) => ({ ...one, label: label(one, i) }));
      const wide = width();
      result.append(make("h3", {}, aim), Plot.plot({
        width: wide, height: 60 + 20 * drawn.length, marginLeft: Math.min(330, wide * 0.5), marginTop: 30,
        ariaLabel: `Change of ${aim} from ${view.a} to ${view.b}`,
        x: { axis: "top", label: `change from ${view.a} to ${view.b}`, grid: true, nice: true },
        y: { label: null, domain: drawn.map((one) => one.label), tickFormat: (told) => told.slice(0, wide * 0.5 / 6) },
        marks: [
          Plot.ruleX([0], { strokeOpacity: 0.6 }),
          Plot.link(drawn.filter((one) => one.half !== null), { x1: (one) => one.mean - one.half, x2: (one) => one.mean + one.half, y1: "label", y2: "label", strokeWidth: 2, stroke: "#3b76c4" }),
          Plot.dot(drawn, { x: "mean", y: "label", fill: "#3b76c4", r: 4 }),
        ],
      }), table(["attack", "victim", "board", "from", "to", "change", "seeds"], drawn.map((one) => [
        `${of.attack(one.a)} ${of.mark(one.a)}`, `${victim(one.a)}, ${of.adversary(one.a)}`, of.board(one.a), shown(mean[one.b], digits(one.a)),
        shown(mean[one.a], digits(one.a)),
        shown(one.mean, digits(one.a)) + (one.half === null ? "" : ` ± ${shown(one.half, digits(one.a))}`), String(one.found.length),
      ]), aim));
      if (some.length > SHOWN) result.append(note(`The ${SHOWN} largest falls of ${some.length} changes: choose more filters.`));
    }
    result.append(note("‡, ¶: does not count, the board says why. Differences are taken seed by seed on the same victims' rows; the interval is Student's 95 %, each on its own. "
      + "With fewer than three common seeds there is none."));
  };

  // ---- csv ---------------------------------------------------------------------------------------

  let chosen = all;
  download.addEventListener("click", () => {
    const names = ["board", "dataset", "target", "protocol", "adversary", "defense", "attack", "access", "game", "aim", "metric", "mark"];
    const lines = chosen.flatMap((row) => number("seeds")[row].map((seed, i) => [
      ...names.map((name) => of[name](row)), seed, number("values")[row][i], number("accuracies")[row][i] ?? ""]));
    const told = d3.csvFormatRows([[...names, "seed", "value", "test accuracy"], ...lines]);
    const link = make("a", { href: URL.createObjectURL(new Blob([told], { type: "text/csv" })), download: "privbench.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });

  // ---- all of it ---------------------------------------------------------------------------------

  const SHOW = { table: showTable, front: showFront, roc: showRoc, compare: showCompare };
  function update() {
    const { found, counts } = filter();
    chosen = found;
    for (const [name, { boxes, head }] of Object.entries(groups)) {
      const picked = view.chosen[name];
      head.textContent = picked.size ? `${name}: ${[...picked].join(", ")}` : name;
      boxes.forEach(({ box, told, line: label }, i) => {
        box.checked = picked.has(values[name][i]);
        told.textContent = counts[name][i];
        label.classList.toggle("none", !counts[name][i]);
      });
    }
    for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", String(name === view.show));
    status.textContent = `${plural(found.length, "cell")} of ${count.toLocaleString("en")}, ${plural(d3.sum(found, (row) => number("seeds")[row].length), "result")}`;
    result.replaceChildren();
    if (found.length) SHOW[view.show](found);
    else result.append(note("Nothing has all of that: choose fewer filters."));
    write();
  }
  const again = () => {
    if (location.hash && !location.hash.includes("=")) return; // an anchor of the page
    read();
    search.value = view.words;
    update();
  };
  addEventListener("hashchange", again);
  again();
  if (!result.hasChildNodes()) update(); // the address was an anchor
})();
