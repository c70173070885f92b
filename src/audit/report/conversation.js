// One unit with everything that was said, as people read it. It is made when it is opened.

const FIRST_CHARACTERS = 4_000;
const MORE_CHARACTERS = 50_000;
const MESSAGES_AT_ONCE = 100;

let current = null; // The unit that is open, or was last,
let address = null; // and the link that it was opened by.

function open(unit) {
  const link = linkTo(unit);
  if (location.hash === link) showUnit(unit);
  else location.hash = link;
}

function showUnit(unit) {
  [current, address] = [unit, location.hash];
  const index = shown.indexOf(unit);
  $('earlier').disabled = index <= 0;
  $('later').disabled = index < 0 || index >= shown.length - 1;
  $('reader-title').replaceChildren(name(unit.id));
  $('reader-body').replaceChildren(...unitParts(unit));
  if (!$('reader').open) $('reader').showModal();
  $('reader-body').scrollTop = 0;
  $('reader-title').focus({ preventScroll: true });
}

function unitParts(unit) {
  const contents = contentsOf(unit);
  const parts = [facts(unit)];
  if (contents === null) {
    return [...parts, notice('There was no room for the contents of this unit in this page. To see them: ', command(unit))];
  }
  if (contents.unreadable) parts.push(notice('What it was given cannot be read: ', contents.unreadable));
  if (contents.purged_ms !== null) {
    parts.push(notice(`The contents were purged at ${moment(contents.purged_ms)} UTC. What is left are times, costs and hashes.`));
  }
  if (unit.failure) parts.push(failureBox(unit.failure, unit.failure_message));
  parts.push(...inputParts(unit, contents));
  const { attempts } = contents;
  attempts.forEach((attempt, index) => parts.push(attemptPart(unit, contents, attempt, index === attempts.length - 1 || attempts.length <= 3)));
  if (attempts.length === 0) parts.push(make('p.quiet', {}, 'Nobody has tried it yet.'));
  parts.push(journalPart(contents));
  return parts;
}

const notice = (...children) => make('p.notice', {}, children);
const failureBox = (kind, message) => make('p.failure', {}, make('b', {}, name(kind)), message ? [' ', name(message)] : null);

function facts(unit) {
  const tell = (label, value) => value && make('div', {}, make('dt', {}, label), make('dd', {}, value));
  return make('dl.facts', {},
    tell('Status', chip(unit.status)),
    tell('Job', name(jobName(unit.job))),
    tell('Type', unit.type && name(unit.type)),
    tell('Model', unit.models.length > 0 && name(unit.models.join(', '))),
    tell('Time', unit.executed_ms !== null && duration(unit.executed_ms)),
    tell('Cost', unit.nanos !== null && cost(unit.nanos, unit.unpriced)),
    tell('Tokens', unit.tokens > 0 && count(unit.tokens)),
    tell('Created', `${moment(unit.created_ms)} UTC`));
}

// A part that is folded; what is in it is made when it is unfolded for the first time.
function fold(className, summary, fill, isOpen = false) {
  const inner = make('div.folded');
  const details = make(`details.${className}`, {}, make('summary', {}, summary), inner);
  let isFilled = false;
  const unfold = () => {
    if (isFilled || !details.open) return;
    isFilled = true;
    append(inner, [fill()]);
  };
  details.addEventListener('toggle', unfold);
  if (isOpen) {
    details.open = true;
    unfold();
  }
  return details;
}

// A text, as much of it as one wants to see.
function prose(unit, shown, className = 'text') {
  const text = textOf(shown);
  const box = make(`div.${className}`);
  let at = 0;
  const more = make('button.more', { type: 'button' });
  const show = (number) => {
    let end = Math.min(at + number, text.length);
    // Not between the halves of a pair.
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end += 1;
    box.append(said(text.slice(at, end)));
    at = end;
    if (at < text.length) more.textContent = `Show more (${many(text.length - at, 'character')} left)`;
    else more.remove();
  };
  show(FIRST_CHARACTERS);
  more.addEventListener('click', () => show(MORE_CHARACTERS));
  const isCut = typeof shown !== 'string' && shown !== null;
  const note = isCut && make('p.cut', {}, `This page has ${bytes(new Blob([text]).size)} of ${bytes(shown.bytes)}. All of it: `, command(unit));
  return [box, at < text.length && more, note];
}

// What is stored as JSON: by field if it has fields, else as it is.
function jsonBox(unit, shown) {
  const text = textOf(shown);
  let value;
  try {
    value = typeof shown === 'string' ? JSON.parse(text) : undefined;
  } catch {
    value = undefined;
  }
  const isRecord = value !== null && typeof value === 'object' && !Array.isArray(value);
  const fields = isRecord ? Object.entries(value) : [];
  if (value === undefined) return prose(unit, shown, 'code');
  if (typeof value === 'string') return prose(unit, value, 'code');
  if (!isRecord || fields.length === 0 || fields.length > 30) return prose(unit, JSON.stringify(value, null, 2), 'code');
  const written = (field) => typeof field === 'string' ? field : JSON.stringify(field, null, 2);
  return make('dl.fields', {}, fields.map(([key, field]) => [make('dt', {}, name(key)), make('dd', {}, prose(unit, written(field), 'code'))]));
}

function inputParts(unit, { inputs, attempts }) {
  if (!inputs) return [];
  const firstWords = attempts[0] && openingOf(attempts[0]);
  const isSaidAgain = inputs.prompt !== null && textOf(inputs.prompt) === firstWords;
  return [
    inputs.prompt !== null && !isSaidAgain && section('Prompt', prose(unit, inputs.prompt)),
    inputs.template !== null && fold('input', 'Template', () => prose(unit, inputs.template)),
    inputs.payload !== null && fold('input', 'Payload', () => jsonBox(unit, inputs.payload)),
    inputs.options !== null && fold('input', 'Options', () => jsonBox(unit, inputs.options)),
  ].filter(Boolean);
}

const section = (title, ...children) => make('section.block', {}, make('h3', {}, title), children);

// What a conversation begins with, as the one who asks says it.
function openingOf(attempt) {
  const first = attempt.messages.find((message) => message.role === 'user');
  const parts = first?.parts;
  return parts?.length === 1 && parts[0].kind === 'text' ? textOf(parts[0].text) : null;
}

function attemptPart(unit, contents, attempt, isOpen) {
  const { about } = attempt;
  const began = about.started_ms ?? about.assigned_ms;
  const summary = [
    make('span.attempt-name', {}, `Attempt ${about.number}`),
    chip(about.outcome),
    about.failure_kind && make('span.kind', {}, name(about.failure_kind)),
    make('span.quiet', {}, [
      about.ended_ms === null ? null : duration(Math.max(about.ended_ms - began, 0)),
      chargesInWords(about),
    ].filter(Boolean).join(' · ')),
    make('span.quiet', {}, 'on ', name(about.worker)),
  ];
  return fold(`attempt.${toneOf(about.outcome)}`, summary, () => attemptInner(unit, contents, attempt), isOpen);
}

function chargesInWords({ charges, started_ms: started }) {
  if (charges.length === 0) return started === null ? null : 'no bill';
  const known = charges.filter((charge) => charge.nanos !== null);
  const sum = cost(known.reduce((sum, charge) => sum + charge.nanos, 0), charges.length - known.length);
  return sum === 'unknown' ? 'price unknown' : sum;
}

function attemptInner(unit, contents, attempt) {
  const { about, messages } = attempt;
  const last = [...messages].reverse().find((message) => message.role === 'assistant');
  const lastWords = (last?.parts ?? []).filter((part) => part.kind === 'text').map((part) => textOf(part.text)).join('');
  const isSaidAgain = about.sent && textOf(about.sent) === openingOf(attempt);
  return [
    about.unreadable && notice('What it left behind cannot be read: ', about.unreadable),
    about.sent && !isSaidAgain && section('What was sent', prose(unit, about.sent)),
    conversation(unit, attempt),
    about.partial && turn('assistant', 'still being written', [prose(unit, about.partial)], 'partial'),
    attempt.lost_sight && notice('The rest of the conversation cannot be read: ', attempt.lost_sight),
    attempt.messages_left_out > 0 && notice(`There was no room for ${many(attempt.messages_left_out, 'more message')} in this page. To see them: `, command(unit)),
    about.messages_lost > 0 && notice(`${many(about.messages_lost, 'message')} could not be stored when it was said.`),
    about.is_purged && !contents.purged_ms && notice('What it left behind was purged.'),
    about.failure_message !== null && about.failure_message !== undefined && make('div.failure', {}, make('b', {}, name(about.failure_kind)), prose(unit, about.failure_message)),
    about.output && textOf(about.output) !== lastWords && section('Output', prose(unit, about.output)),
    about.files?.length > 0 && section('Files', make('ul.files', {}, about.files.map(([path, size]) => make('li', {}, name(path), ' ', make('span.quiet', {}, bytes(size))))),
      about.files_left_out > 0 && make('p.quiet', {}, `and ${count(about.files_left_out)} more`)),
    about.result && fold('input', 'Result', () => jsonBox(unit, about.result)),
    about.late_result && fold('input', 'Reported after it was given up', () => jsonBox(unit, about.late_result)),
    fold('input', 'How it was executed', () => provenance(about)),
  ];
}

function provenance(about) {
  const { provenance } = about;
  const tell = (label, value) => value !== null && value !== undefined && value !== '' && [make('dt', {}, label), make('dd', {}, name(value))];
  const charge = (line) => `${line.nanos === null ? 'price unknown' : money(line.nanos)}${line.is_estimated ? ', estimated' : ''}: ` +
    Object.entries(line.tokens).filter(([, number]) => number > 0).map(([kind, number]) => `${count(number)} ${words(kind)}`).join(', ');
  return make('dl.fields', {},
    tell('Worker', `${about.worker}, of owner ${about.owner}`),
    tell('Claimed', `${moment(about.assigned_ms)} UTC`),
    tell('Started', about.started_ms !== null && `${moment(about.started_ms)} UTC`),
    tell('Ended', about.ended_ms !== null && `${moment(about.ended_ms)} UTC`),
    tell('Session', about.session),
    tell('Process', about.pid),
    tell('Executor', provenance?.executor),
    tell('Version', provenance?.program_version),
    tell('Model', provenance?.model),
    tell('Arguments', provenance?.arguments.join(' ')),
    about.charges.map((line) => tell(line.model, charge(line))),
    about.outcome !== 'OPEN' && !about.is_counted && tell('Limit', 'does not count against the unit’s attempts'));
}

// The messages, with each tool's answer beside its call.
function conversation(unit, attempt) {
  const { messages, about } = attempt;
  const answers = new Map();
  const calls = new Set();
  for (const message of messages) {
    for (const part of message.parts ?? []) {
      if (part.kind === 'tool_use') calls.add(textOf(part.id));
      if (part.kind === 'tool_result') answers.set(textOf(part.id), { part, at_ms: message.at_ms });
    }
  }
  const began = about.started_ms ?? about.assigned_ms;
  const list = make('ol.turns');
  const more = make('button.more', { type: 'button' });
  let at = 0;
  const show = () => {
    const until = Math.min(at + MESSAGES_AT_ONCE, messages.length);
    for (; at < until; at++) {
      const made = messageTurn(unit, messages[at], began, answers, calls);
      if (made) list.append(made);
    }
    if (at < messages.length) more.textContent = `Show more (${many(messages.length - at, 'message')} left)`;
    else more.remove();
  };
  show();
  more.addEventListener('click', show);
  return [messages.length > 0 && list, at < messages.length && more];
}

function messageTurn(unit, message, began, answers, calls) {
  const when = `+${duration(Math.max(message.at_ms - began, 0))}`;
  if (message.unreadable) return turn('system', '', [notice(`Message ${message.number} cannot be read: `, message.unreadable)]);
  if (message.parts === null) return turn(message.role, when, [make('p.quiet', {}, 'The content of this message was purged.')], 'purged');
  // An answer stands beside its call.
  const parts = message.parts.filter((part) => part.kind !== 'tool_result' || !calls.has(textOf(part.id)));
  if (parts.length === 0 && message.parts.length > 0) return null;
  const made = parts.map((part) => partBox(unit, part, answers));
  if (message.parts_left_out > 0) made.push(make('p.cut', {}, `and ${many(message.parts_left_out, 'more part')}. All of it: `, command(unit)));
  if (message.stored_of_bytes !== null) made.push(make('p.cut', {}, `It had ${bytes(message.stored_of_bytes)} and was cut when it was stored.`));
  if (message.is_partial) made.push(make('p.cut.partial-note', {}, 'The attempt ended before this message did.'));
  return turn(message.role, when, made, message.is_partial ? 'partial' : null);
}

const SPEAKERS = { system: 'System', user: 'User', assistant: 'Assistant', tool: 'Tool' };

function turn(role, when, parts, mark = null) {
  const label = [make('span.speaker', {}, SPEAKERS[role] ?? 'Somebody'), mark === 'partial' && make('span.mark', {}, 'partial'), make('span.when', {}, when)];
  return make(`li.turn.role-${role in SPEAKERS ? role : 'system'}${mark ? `.${mark}` : ''}`, {}, make('div.turn-head', {}, label), make('div.turn-body', {}, parts));
}

function partBox(unit, part, answers) {
  switch (part.kind) {
    case 'text': return prose(unit, part.text);
    case 'thinking':
      return textOf(part.text) === '' ? make('p.quiet', {}, 'Thought, without showing it.')
        : fold('thinking', ['Thinking ', make('span.quiet', {}, name(firstLine(textOf(part.text))))], () => prose(unit, part.text));
    case 'tool_use': return toolBox(unit, part, answers.get(textOf(part.id)));
    case 'tool_result': return make(`div.answer${part.is_error ? '.bad' : ''}`, {}, make('p.quiet', {}, part.is_error ? 'A tool failed, whose call is not here:' : 'A tool answered, whose call is not here:'), contentOf(unit, part));
    case 'image': return make('p.quiet', {}, 'A picture, ', name(textOf(part.media_type)), `, ${bytes(part.bytes)}: pictures are not shown.`);
    default: return fold('input', [name(textOf(part.name))], () => jsonBox(unit, part.value));
  }
}

const contentOf = (unit, part) => part.content.map((inner) => inner.kind === 'text' ? prose(unit, inner.text, 'code') : partBox(unit, inner, new Map()));
const firstLine = (text) => shortened(text.trimStart().split('\n', 1)[0].slice(0, 200), 90);

// A call and its answer, folded together.
function toolBox(unit, part, answer) {
  const state = !answer ? ['no answer', 'open'] : answer.part.is_error ? ['failed', 'bad'] : ['answered', 'good'];
  const summary = [make('span.tool-name', {}, name(textOf(part.name))), make('span.tool-input', {}, name(inputLine(part.input))), make(`span.tool-state.${state[1]}`, {}, state[0])];
  return fold('tool', summary, () => [
    make('h4', {}, 'Input'), jsonBox(unit, part.input),
    make('h4', {}, answer?.part.is_error ? 'Error' : 'Output'),
    answer ? make(`div.answer${answer.part.is_error ? '.bad' : ''}`, {}, contentOf(unit, answer.part)) : make('p.quiet', {}, 'It never answered.'),
  ]);
}

// What a tool was called with, in one line.
function inputLine(shown) {
  const text = textOf(shown).slice(0, 400);
  try {
    const value = JSON.parse(textOf(shown).length > 400 ? '' : text);
    const fields = value !== null && typeof value === 'object' ? Object.values(value) : [value];
    // Of named fields words say more than numbers.
    if (!Array.isArray(value)) fields.sort((a, b) => (typeof b === 'string') - (typeof a === 'string'));
    return shortened(fields.map((field) => typeof field === 'string' ? field : JSON.stringify(field)).join(' ').replace(/\s+/g, ' '), 120);
  } catch {
    return shortened(text.replace(/\s+/g, ' '), 120);
  }
}

function journalPart(contents) {
  const rows = () => make('ol.journal', {}, contents.journal.map((step) => make('li', {},
    make('time', {}, moment(step.at_ms)), make('b', {}, words(step.change)),
    make('span', {}, step.attempt !== null && `attempt ${step.attempt} `, 'by ', name(textOf(step.actor)), step.reason !== null && [': ', name(textOf(step.reason))]))),
  contents.journal_goes_on && make('li', {}, 'There is more than is shown here.'));
  return fold('input', `Journal, ${many(contents.journal.length, 'row')}`, rows);
}
