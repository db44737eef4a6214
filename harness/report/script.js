"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // A cell's evidence is in a dialog of its own.
  all("[data-dialog]").forEach((button) => {
    const dialog = document.getElementById(button.dataset.dialog);
    button.addEventListener("click", () => dialog.showModal());
    dialog.addEventListener("close", () => button.focus());
  });
  all("dialog").forEach((dialog) => {
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  });

  // Rows and columns that match stay.
  const matches = (text, wanted) => text.toLowerCase().includes(wanted.trim().toLowerCase());
  all("[data-filters]").forEach((form) => {
    const table = document.getElementById(form.dataset.filters);
    const count = form.querySelector("output");
    const apply = () => {
      const value = (name) => form.elements[name] ? form.elements[name].value : "";
      const columns = all("thead th[data-column]", table);
      const shown = columns.map((th) => matches(th.dataset.column, value("column")));
      columns.forEach((th, place) => { th.hidden = !shown[place]; });
      let rows = 0;
      all("tbody tr", table).forEach((row) => {
        const cells = all("td[data-status]", row);
        cells.forEach((td, place) => { td.hidden = !shown[place]; });
        const status = value("status");
        const some = !status || cells.some((td, place) => shown[place] && td.dataset.status === status);
        row.hidden = !(matches(row.dataset.row, value("row")) && some);
        rows += row.hidden ? 0 : 1;
      });
      count.textContent = `${rows} rows, ${columns.length ? shown.filter(Boolean).length : "all"} columns`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  });

  // A heading sorts its table; again, the other way round.
  all("table[data-sortable] thead th").forEach((th) => {
    const button = th.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const body = th.closest("table").tBodies[0];
      const place = [...th.parentNode.children].indexOf(th);
      const down = th.getAttribute("aria-sort") === "ascending";
      all("th", th.parentNode).forEach((other) => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.children[place].dataset.sort ?? row.children[place].textContent;
      const order = (one, other) => {
        const a = key(one), b = key(other), numbers = [Number(a), Number(b)];
        const found = numbers.some(Number.isNaN) ? a.localeCompare(b) : numbers[0] - numbers[1];
        return down ? -found : found;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
})();
