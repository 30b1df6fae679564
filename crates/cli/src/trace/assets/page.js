// A click on a column's head sorts its table by that column; another click turns the order round.
document.querySelectorAll("th").forEach((head) => {
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const column = head.cellIndex;
    const down = head.dataset.down !== "yes";
    head.dataset.down = down ? "yes" : "no";
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const order = (one, other) => (one < other ? -1 : one > other ? 1 : 0) * (down ? -1 : 1);
    [...body.rows].sort((one, other) => order(key(one), key(other))).forEach((row) => body.append(row));
  });
});
