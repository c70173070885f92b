// What happens when the page is opened, and what its buttons do.

// Light or dark: as the system says, until somebody says otherwise here.
function startTheme() {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  // A browser may keep nothing for a page from disk.
  try { root.dataset.theme = localStorage.getItem('workcrew-theme') ?? root.dataset.theme; } catch { /* it asks the system */ }
  if (!['light', 'dark'].includes(root.dataset.theme)) delete root.dataset.theme;
  $('theme').addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    try { localStorage.setItem('workcrew-theme', root.dataset.theme); } catch { /* until it is closed */ }
  });
}

// What the page had no room for.
function showNotices() {
  const say = (...children) => $('notices').append(notice(children));
  const show = make('code', {}, 'workcrew show UNIT');
  if (written.units > units.length) {
    say(`The table has ${count(units.length)} of ${many(written.units, 'unit')}, those that failed first; the numbers above count them all. To see another: `, show.cloneNode(true));
  }
  if (written.units_without_contents > 0) {
    say(`This page holds ${bytes(overview.limit_bytes)} of contents, which was not enough: of ${many(written.units_without_contents, 'unit')} in the table not everything that was said is here. To see it: `, show.cloneNode(true));
  }
  if (written.texts_cut > 0) {
    say(`${many(written.texts_cut, 'text is', 'texts are')} longer than ${bytes(overview.limit_text_bytes)} and cut. To see all of it: `, show.cloneNode(true));
  }
  if (written.unreadable > 0) {
    say(`${many(written.unreadable, 'record')} could not be read. What is wrong with the archive tells `, make('code', {}, 'workcrew verify'), '.');
  }
}

// Opens the unit that the address names. A job may be named by its number too.
function followLink() {
  const [, job, id] = /^#unit=([^/]*)\/(.*)$/s.exec(location.hash) ?? [];
  if (id === undefined) {
    if ($('reader').open) $('reader').close();
    return;
  }
  let named;
  try {
    named = [decodeURIComponent(job), decodeURIComponent(id)];
  } catch {
    return;
  }
  const isMeant = (unit) => unit.id === named[1];
  const unit = units.find((unit) => isMeant(unit) && jobName(unit.job) === named[0])
    ?? units.find((unit) => isMeant(unit) && String(unit.job) === named[0]);
  if (!unit) {
    $('notices').append(make('p.notice', {}, 'The unit of this link is not in this page. To see it: ', command({ id: named[1] })));
    $('units').scrollIntoView();
    return;
  }
  scrollTo(unit);
  showUnit(unit);
}

function startReader() {
  const reader = $('reader');
  const step = (by) => {
    const next = shown[shown.indexOf(current) + by];
    if (next) open(next);
  };
  $('earlier').addEventListener('click', () => step(-1));
  $('later').addEventListener('click', () => step(1));
  $('close').addEventListener('click', () => reader.close());
  // Who clicks beside it wants to be back at the table.
  reader.addEventListener('click', (event) => { if (event.target === reader) reader.close(); });
  reader.addEventListener('close', () => {
    // This comes a little later: another unit may have been opened meanwhile, or be about to.
    if (reader.open) return;
    $('reader-body').replaceChildren();
    if (location.hash === address) history.replaceState(null, '', '#');
    elements.get(current?.key)?.querySelector('a')?.focus({ preventScroll: true });
  });
  $('copy').addEventListener('click', async () => {
    const isCopied = await copy(location.href);
    $('copy').textContent = isCopied ? 'Copied' : 'Not copied: it is in the address bar';
    setTimeout(() => { $('copy').textContent = 'Copy link'; }, 1_500);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

function startFilters() {
  let timer;
  $('search').addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(() => search($('search').value), 60);
  });
  $('clear').addEventListener('click', () => {
    clearFilters();
    $('search').focus();
  });
  addEventListener('keydown', (event) => {
    const isWriting = event.target.closest?.('input, select, dialog');
    if (event.key === '/' && !isWriting && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      $('search').focus();
    }
  });
}

function start() {
  startTheme();
  showSummary();
  showNotices();
  makeColumns();
  makeFilters();
  startFilters();
  startReader();
  document.body.classList.toggle('has-jobs', jobs.size > 1);
  drawLists();
  drawPictures();
  refresh();
  addEventListener('scroll', showRows, { passive: true });
  let width = innerWidth;
  addEventListener('resize', () => {
    showRows();
    if (innerWidth !== width) drawPictures();
    width = innerWidth;
  });
  addEventListener('hashchange', followLink);
  followLink();
  document.documentElement.dataset.isReady = '';
}

start();
