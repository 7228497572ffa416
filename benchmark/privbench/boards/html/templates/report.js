"use strict";
(() => {
  const page = document;
  page.documentElement.classList.add("js");

  // A link to the details of a cell opens them.
  const all = page.getElementById("all-details");
  const open = () => {
    const target = /^#cell-\d+$/.test(location.hash) && page.getElementById(location.hash.slice(1));
    if (!target) return;
    for (const other of all.querySelectorAll(".cell[open]")) other.open = false;
    for (let at = target.parentElement; at; at = at.parentElement) if (at.localName === "details") at.open = true;
    target.parentElement.scrollIntoView();
    target.focus({ preventScroll: true });
  };
  addEventListener("hashchange", open);
  page.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#cell-"]');
    if (link && link.getAttribute("href") === location.hash) open();
  });

  // Sorting: numbers as numbers, what is empty last.
  const table = page.getElementById("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, i) => row.cells[i].dataset.sort ?? row.cells[i].textContent.trim();
  const number = (text) => (/^[-+]?\d/.test(text) ? parseFloat(text) : NaN);
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  heads.forEach((head, i) => {
    const button = page.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const [known, empty] = [[], []];
      for (const row of rows) (key(row, i) === "" ? empty : known).push(row);
      known.sort((a, b) => (down ? -1 : 1) * compare(key(a, i), key(b, i)));
      body.append(...known, ...empty);
    });
  });

  // Filters: a box for any words, and a list for each column that has few values.
  const form = page.getElementById("filters");
  const count = page.getElementById("count");
  const chosen = [];
  const labelled = (name, field) => {
    const label = page.createElement("label");
    label.append(name, field);
    form.append(label);
    field.addEventListener("input", filter);
    return field;
  };
  const value = (row, i) => row.cells[i].textContent.trim().replace(/( [°†‡¶])+$/, ""); // without marks
  const words = labelled("search", Object.assign(page.createElement("input"), { type: "search" }));
  heads.forEach((head, i) => {
    if (!("filter" in head.dataset)) return;
    const values = [...new Set(rows.map((row) => value(row, i)))].sort();
    if (values.length < 2 || values.length > 300) return;
    const select = page.createElement("select");
    select.append(new Option("all", ""), ...values.map((one) => new Option(one || "–", `=${one}`)));
    labelled(head.textContent, select);
    chosen.push([i, select]);
  });
  const texts = rows.map((row) => row.textContent.toLowerCase());
  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    rows.forEach((row, n) => {
      const fits = wanted.every((word) => texts[n].includes(word))
        && chosen.every(([i, select]) => !select.value || `=${value(row, i)}` === select.value);
      row.hidden = !fits;
      left += fits;
    });
    count.textContent = `${left} of ${rows.length} cells.`;
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;

  // Downloads are unpacked first.
  for (const link of page.querySelectorAll("a.download")) {
    link.addEventListener("click", async (event) => {
      if (typeof DecompressionStream === "undefined") return;
      event.preventDefault();
      const packed = Uint8Array.from(atob(link.getAttribute("href").split(",")[1]), (c) => c.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const file = new Blob([await new Response(stream).arrayBuffer()], { type: link.dataset.kind });
      const made = page.createElement("a");
      made.href = URL.createObjectURL(file);
      made.download = link.dataset.name;
      made.click();
      setTimeout(() => URL.revokeObjectURL(made.href), 60000);
    });
  }

  open();
})();
