// Runs before the page is drawn, so that nobody at night is shown a white one first.
(() => {
  const kept = localStorage.getItem("tutti-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
