// Sorts the table by a clicked heading, shows only the runs that a word selects,
// and lights up a run everywhere while the pointer is on one of its marks.
(function () {
  function value(row, column) {
    const raw = row.cells[column].dataset.v;
    return raw === undefined ? null : isNaN(raw) ? raw : Number(raw);
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    const headings = Array.from(table.tHead.rows[0].cells);
    headings.forEach(function (heading, column) {
      heading.firstElementChild.addEventListener("click", function () {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        headings.forEach((other) => other.setAttribute("aria-sort", "none"));
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = Array.from(table.tBodies[0].rows);
        rows.sort(function (a, b) {
          const x = value(a, column), y = value(b, column);
          if (x === null || y === null) return (x === null) - (y === null);  // n/a stays below
          return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
        });
        table.tBodies[0].append(...rows);
      });
    });
  });
  const filter = document.querySelector(".filter");
  if (filter) {
    const names = {};
    document.querySelectorAll("tr.m").forEach((row) => (names[row.dataset.run] = row.cells[0].dataset.v.toLowerCase()));
    filter.hidden = false;
    filter.lastElementChild.addEventListener("input", function (event) {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      document.querySelectorAll(".m").forEach(function (mark) {
        const name = names[mark.dataset.run];
        mark.classList.toggle("out", name !== undefined && !words.every((word) => name.includes(word)));
      });
    });
  }
  // What a tooltip says stands in a list below its plot too: for fingers, keyboards and readers of the page.
  const narrow = window.matchMedia("(max-width: 640px)").matches;
  document.querySelectorAll("figure").forEach(function (figure) {
    if (!figure.querySelector("svg title")) return;
    const details = document.createElement("details"), summary = document.createElement("summary");
    details.className = "words";
    summary.textContent = "The figures in words";
    details.append(summary);
    details.addEventListener("toggle", function () {
      if (details.children.length > 1) return;
      const list = document.createElement("ul");
      figure.querySelectorAll("svg title").forEach(function (title) {
        const item = document.createElement("li");
        item.textContent = title.textContent;
        list.append(item);
      });
      details.append(list);
    });
    // A wide plot does not fit a phone.
    details.open = narrow && figure.classList.contains("wide");
    figure.append(details);
  });
  let lit = null;
  document.addEventListener("pointerover", function (event) {
    const marks = event.target.closest ? event.target.closest("[data-run]") : null;
    const run = marks ? marks.dataset.run : null;
    if (run === lit) return;
    lit = run;
    document.body.classList.toggle("lit", run !== null);
    document.querySelectorAll(".m.here").forEach((mark) => mark.classList.remove("here"));
    if (run !== null) {
      document.querySelectorAll('.m[data-run="' + run + '"]').forEach((mark) => mark.classList.add("here"));
    }
  });
})();
