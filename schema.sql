-- The database of workcrew as it is today (user_version 5).
--
-- Times are milliseconds since 1970 UTC unless their name ends in `_boot_ms`: those count from the
-- start of the machine, and are comparable only within one boot (see owners.boot_id).
-- Money is nano-dollars. Hashes are 32 bytes of blake3. JSON is UTF-8 text in a BLOB.
--
-- Hot and cold are apart: every change of a unit rewrites its small row in work_units; what
-- is large (payload, prompt, messages, results) is written once, elsewhere.
--
-- What is written once refers to its owner, unit or attempt by a foreign key. Columns that change with every step of
-- a unit (accepted_by, lease_owner, current_unit) do not: for them SQLite would copy every page that it touches, to
-- be able to undo the one statement. The verification checks those.
--
-- Checks spell their lists out with OR: for an IN with more than two values SQLite builds a temporary table each time
-- a row is written, which took more time than writing the row.

PRAGMA application_id = 0x776b6372;  -- "wkcr": without it a file is not ours, and is not touched

-- A named batch of units. Name and template never change, budget and settings do.
CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL UNIQUE,
    template   TEXT,                -- what prompts are rendered from, unless a unit has its own
    budget     INTEGER,             -- nano-dollars that all its units may cost
    settings   BLOB    NOT NULL,    -- JSON of the caller's
    created_at INTEGER NOT NULL
) STRICT;

-- What each job is, from when on and by whom: a row when it is made and one for each change, written with it, never changed. The
-- last one says what its row in jobs must say. The digest is over the job as a whole, each row's link over the link before and all
-- its own columns.
CREATE TABLE job_journal (
    seq          INTEGER PRIMARY KEY,   -- without gaps
    at           INTEGER NOT NULL,
    job_id       INTEGER NOT NULL REFERENCES jobs (id),
    budget       INTEGER,            -- of the job from then on, as in jobs
    settings     BLOB    NOT NULL,
    actor        TEXT    NOT NULL,   -- who did it
    reason       TEXT,
    journal_seq  INTEGER NOT NULL,   -- the last row of the journal then, and its link: that one must still be there
    journal_link BLOB,
    digest       BLOB    NOT NULL,
    link         BLOB    NOT NULL
) STRICT;

-- Serves: what a job was made with, and what it was last.
CREATE INDEX job_journal_by_job ON job_journal (job_id, seq);

-- A pool instance in a process. Together pid, start_ticks, boot_id and pid_namespace name one process for ever.
CREATE TABLE owners (
    id                INTEGER PRIMARY KEY,
    instance          TEXT    NOT NULL UNIQUE,   -- fresh for each, so that registering twice gives one owner
    label             TEXT    NOT NULL,
    pid               INTEGER NOT NULL,
    start_ticks       INTEGER NOT NULL,
    boot_id           TEXT    NOT NULL,
    pid_namespace     INTEGER NOT NULL,
    registered_at     INTEGER NOT NULL,
    heartbeat_at      INTEGER NOT NULL,   -- when it last renewed its leases
    heartbeat_boot_ms INTEGER NOT NULL,   -- the same moment by the other clock: so its leases can be told by the calendar
    lease_ms          INTEGER NOT NULL,   -- how long its leases last: silent for longer, nobody need wait for it
    ended_at          INTEGER,
    host              TEXT,               -- the machine's name when it was registered, for people
    state             BLOB,               -- JSON: what it last said of itself; nothing once it has ended
    told_at           INTEGER,            -- when it said so
    budget            INTEGER             -- nano-dollars that all it executes may cost
) STRICT;

-- What is spent of a budget, and what of it is promised to attempts that are under way: a row for each job and each owner that has
-- one. All of it follows from attempts and charges; it is kept so that a claim need not go through them.
CREATE TABLE accounts (
    holder   TEXT    NOT NULL CHECK (holder = 'job' OR holder = 'owner'),
    id       INTEGER NOT NULL,   -- of the job, or of the owner
    spent    INTEGER NOT NULL,   -- nano-dollars; what has no price counts as what was expected
    reserved INTEGER NOT NULL,
    largest  INTEGER,            -- what the dearest attempt cost of those that are known to the last token
    PRIMARY KEY (holder, id)
) STRICT, WITHOUT ROWID;

-- The hot row of a unit: what every change touches, and nothing large.
CREATE TABLE work_units (
    key                    INTEGER PRIMARY KEY,   -- grows with every insert: the order of units
    job_id                 INTEGER NOT NULL REFERENCES jobs (id),
    id                     TEXT    NOT NULL,      -- the caller's name for it
    status                 TEXT    NOT NULL CHECK (
        status = 'PENDING' OR status = 'ASSIGNED' OR status = 'PROCESSING' OR status = 'CANCEL_REQUESTED'
        OR status = 'COMPLETED' OR status = 'FAILED' OR status = 'CANCELLED'),
    priority               INTEGER NOT NULL,      -- larger goes first
    has_prompt             INTEGER NOT NULL,      -- 1 if it can be executed by whoever claims it
    fence                  INTEGER NOT NULL DEFAULT 0,   -- grows with every claim and every expiry
    attempt_count          INTEGER NOT NULL DEFAULT 0,
    attempts_used          INTEGER NOT NULL DEFAULT 0,   -- those that count against max_retries since the last requeue
    releases               INTEGER NOT NULL DEFAULT 0,   -- those given back uncounted since then
    max_retries            INTEGER NOT NULL,
    accepted_by            INTEGER,               -- only this owner may claim it; kept if it ends while it waits
    not_before             INTEGER,               -- not to be claimed earlier
    delay_ms               INTEGER,               -- how far away not_before was when it was set
    queue_deadline_boot_ms INTEGER,               -- fails if it is not claimed by then
    lease_owner            INTEGER,
    lease_worker           TEXT,
    lease_until_boot_ms    INTEGER,
    failure_kind           TEXT,                  -- why it is FAILED
    failure_message        TEXT,                  -- for people; a purge empties it
    created_at             INTEGER NOT NULL,
    completed_at           INTEGER,
    purged_at              INTEGER,
    -- A lease exists exactly while somebody works on it.
    CHECK ((lease_owner IS NOT NULL) = (status = 'ASSIGNED' OR status = 'PROCESSING' OR status = 'CANCEL_REQUESTED')),
    CHECK ((lease_owner IS NULL) = (lease_until_boot_ms IS NULL) AND (lease_owner IS NULL) = (lease_worker IS NULL)),
    CHECK ((completed_at IS NOT NULL) = (status = 'COMPLETED' OR status = 'FAILED' OR status = 'CANCELLED')),
    CHECK ((failure_kind IS NOT NULL) = (status = 'FAILED'))
) STRICT;

-- Serves: find a unit by its name; a name is unique in its job.
CREATE UNIQUE INDEX work_units_by_id ON work_units (job_id, id);
-- Serves: claim, in the order of priority and insertion, of what an owner accepted or nobody did, if there is something to send.
CREATE INDEX work_units_ready ON work_units (job_id, accepted_by, priority DESC, key)
    WHERE status = 'PENDING' AND not_before IS NULL AND (has_prompt OR accepted_by IS NOT NULL);
-- Serves: claim, which first makes ready what of its job has become due; when the next unit does.
CREATE INDEX work_units_delayed ON work_units (job_id, not_before) WHERE not_before IS NOT NULL;
-- Serves: claim, which does the same for what the calendar put off when it was set back.
CREATE INDEX work_units_put_off ON work_units (not_before - delay_ms) WHERE not_before IS NOT NULL;
-- Serves: renew, expire, the end of an owner, and what is being executed.
CREATE INDEX work_units_leased ON work_units (lease_owner, lease_until_boot_ms) WHERE lease_owner IS NOT NULL;
-- Serves: what waits for an owner, and the end of an owner, which gives that back.
CREATE INDEX work_units_accepted ON work_units (accepted_by) WHERE status = 'PENDING' AND accepted_by IS NOT NULL;
-- Serves: expire, which fails what waited too long.
CREATE INDEX work_units_queued ON work_units (queue_deadline_boot_ms) WHERE queue_deadline_boot_ms IS NOT NULL;
-- Serves: list what FAILED, or what was CANCELLED, in the order of keys.
CREATE INDEX work_units_ended_badly ON work_units (job_id, status, key) WHERE status = 'FAILED' OR status = 'CANCELLED';

-- Serves: purge, which takes what ended first.
CREATE INDEX work_units_to_purge ON work_units (completed_at, key) WHERE completed_at IS NOT NULL AND purged_at IS NULL;

-- What a unit was given. Written once, but for a prompt that is added; a purge empties payload and prompt.
CREATE TABLE unit_inputs (
    unit_key     INTEGER PRIMARY KEY REFERENCES work_units (key),
    unit_type    TEXT,
    payload      BLOB,              -- JSON
    prompt       TEXT,              -- sent as it is
    template     TEXT,              -- rendered into a prompt if there is none
    options      BLOB NOT NULL,     -- JSON: how it wants to be executed
    content_hash BLOB NOT NULL,     -- over all of these but the prompt
    prompt_hash  BLOB
) STRICT;

-- One execution of a unit.
CREATE TABLE attempts (
    unit_key      INTEGER NOT NULL REFERENCES work_units (key),
    number        INTEGER NOT NULL,   -- from 1
    fence         INTEGER NOT NULL,   -- under which it may write
    owner_id      INTEGER NOT NULL REFERENCES owners (id),
    worker_id     TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,   -- of the request that was granted it
    assigned_at   INTEGER NOT NULL,
    started_at    INTEGER,
    ended_at      INTEGER,
    outcome       TEXT CHECK (
        outcome = 'COMPLETED' OR outcome = 'FAILED' OR outcome = 'TIMED_OUT' OR outcome = 'LOST' OR outcome = 'CANCELLED'
        OR outcome = 'RELEASED'),
    is_counted    INTEGER NOT NULL DEFAULT 0,
    failure_kind  TEXT,
    failure_message TEXT,             -- for people; a purge empties it
    session_id    TEXT,
    process       BLOB,               -- JSON: pid, start_ticks, boot_id, pid_namespace of its child, and of the reaper that ends it
    provenance    BLOB,               -- JSON: executor, versions, arguments, model
    message_count INTEGER,            -- set when it ends, with the last link of its conversation
    head          BLOB,
    messages_lost INTEGER NOT NULL DEFAULT 0,
    expected      INTEGER,            -- nano-dollars reserved for it while it is open, where a budget counts
    answer_of_unit    INTEGER,        -- whose answer it has, if that is another attempt's: its unit, and
    answer_of_attempt INTEGER,        -- its number
    PRIMARY KEY (unit_key, number),
    CHECK ((outcome IS NULL) = (ended_at IS NULL) AND (outcome IS NULL) = (head IS NULL))
) STRICT, WITHOUT ROWID;

-- What an attempt left behind, if anything.
CREATE TABLE attempt_results (
    unit_key        INTEGER NOT NULL,
    attempt_number  INTEGER NOT NULL,
    rendered_prompt TEXT,    -- what was really sent, if it was rendered
    result          BLOB,    -- JSON
    output          TEXT,
    late_result     BLOB,    -- JSON: the report that came after the attempt was given up
    purged          BLOB,    -- JSON: the hashes of these four, and of the attempt's failure_message, in their place
    PRIMARY KEY (unit_key, attempt_number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;

-- Files that an attempt made.
CREATE TABLE output_files (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    path           TEXT    NOT NULL,
    size_bytes     INTEGER NOT NULL,
    hash           BLOB    NOT NULL,
    PRIMARY KEY (unit_key, attempt_number, position),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT, WITHOUT ROWID;

-- The conversation of an attempt. Written once; a purge empties body and raw.
CREATE TABLE messages (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    number         INTEGER NOT NULL,   -- from 1
    at             INTEGER NOT NULL,
    role           TEXT    NOT NULL CHECK (role = 'system' OR role = 'user' OR role = 'assistant' OR role = 'tool'),
    encoding       TEXT    NOT NULL CHECK (encoding = 'plain' OR encoding = 'zstd'),   -- of body and raw
    body           BLOB,               -- JSON: the normalised message
    raw            BLOB,               -- what the provider sent, byte for byte
    content_hash   BLOB    NOT NULL,   -- over body and raw
    link           BLOB    NOT NULL,   -- over the link before, this hash, number, at and role
    PRIMARY KEY (unit_key, attempt_number, number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;

-- The text of a message that is still being written: at most one for each attempt.
CREATE TABLE partials (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    text           TEXT    NOT NULL,
    PRIMARY KEY (unit_key, attempt_number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;

-- What an attempt saved for the next one.
CREATE TABLE checkpoints (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    value          BLOB    NOT NULL,   -- JSON
    PRIMARY KEY (unit_key, attempt_number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;

-- The ledger: what an attempt used of a model, and what that cost.
CREATE TABLE charges (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    model          TEXT    NOT NULL,
    input          INTEGER NOT NULL,   -- tokens, in classes that do not overlap
    output         INTEGER NOT NULL,
    cache_read     INTEGER NOT NULL,
    cache_write    INTEGER NOT NULL,
    reasoning      INTEGER NOT NULL,
    amount         INTEGER,            -- nano-dollars; NULL is unknown, which is not zero
    price          BLOB,               -- JSON: the price it was computed with, and its date
    is_estimated   INTEGER NOT NULL,
    PRIMARY KEY (unit_key, attempt_number, model),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT, WITHOUT ROWID;

-- Turns to ask a provider of attempts that have not ended, or ended a moment ago: the next turn counts them as what they were used for.
CREATE TABLE turns (
    id              INTEGER PRIMARY KEY,
    provider        TEXT    NOT NULL,
    unit_key        INTEGER NOT NULL,
    attempt_number  INTEGER NOT NULL,
    boot_id         TEXT    NOT NULL,   -- in another boot none of them counts
    free_at_boot_ms INTEGER NOT NULL,   -- where it is counted in rate_windows
    input           INTEGER NOT NULL,   -- tokens that were expected
    output          INTEGER NOT NULL,
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;

-- Serves: taking a turn, which looks at all those of the provider.
CREATE INDEX turns_by_provider ON turns (provider);

-- What a provider was asked lately: one row for all turns that count until the same moment, and none for what no longer counts.
CREATE TABLE rate_windows (
    provider        TEXT    NOT NULL,
    boot_id         TEXT    NOT NULL,   -- of another boot nothing counts
    free_at_boot_ms INTEGER NOT NULL,
    requests        INTEGER NOT NULL,
    input           INTEGER NOT NULL,   -- tokens: used by attempts that have ended, expected of others
    output          INTEGER NOT NULL,
    PRIMARY KEY (provider, boot_id, free_at_boot_ms)
) STRICT, WITHOUT ROWID;

-- Until when a provider is not to be asked, as it has said itself.
CREATE TABLE holds (
    provider      TEXT    PRIMARY KEY,
    until         INTEGER NOT NULL,   -- by the calendar, for people and for another boot
    until_boot_ms INTEGER NOT NULL,   -- by the clock of the machine, in this boot
    boot_id       TEXT    NOT NULL,
    reason        TEXT    NOT NULL    -- for people
) STRICT, WITHOUT ROWID;

-- Who does a piece of work, or has done it: of those who need the same, one does it. Nothing can be read from the key.
CREATE TABLE works (
    key            BLOB    PRIMARY KEY,   -- the hash of all that the answer depends on
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT, WITHOUT ROWID;

-- A pool slot as others see it. Rows of ended workers stay.
CREATE TABLE workers (
    owner_id         INTEGER NOT NULL REFERENCES owners (id),
    id               TEXT    NOT NULL,
    job_id           INTEGER NOT NULL REFERENCES jobs (id),
    status           TEXT    NOT NULL CHECK (
        status = 'STARTING' OR status = 'READY' OR status = 'BUSY' OR status = 'TAINTED' OR status = 'SHUTTING_DOWN'
        OR status = 'TERMINATED' OR status = 'DEAD'),
    capacity         INTEGER NOT NULL,
    load             INTEGER NOT NULL CHECK (load >= 0),
    current_unit     INTEGER,
    units_completed  INTEGER NOT NULL DEFAULT 0,
    units_failed     INTEGER NOT NULL DEFAULT 0,
    total_time_ms    INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    last_activity_at INTEGER NOT NULL,
    PRIMARY KEY (owner_id, id)
) STRICT, WITHOUT ROWID;

-- One row for every change of a unit, written with it, never changed. Each row's link is over the link
-- before and all its own columns.
CREATE TABLE journal (
    seq            INTEGER PRIMARY KEY,   -- without gaps
    at             INTEGER NOT NULL,
    unit_key       INTEGER NOT NULL REFERENCES work_units (key),
    attempt_number INTEGER,
    fence          INTEGER NOT NULL,   -- after the change
    change         TEXT    NOT NULL,
    from_status    TEXT,
    to_status      TEXT    NOT NULL,
    actor          TEXT    NOT NULL,   -- who did it: an owner, or a person
    reason         TEXT,
    message_count  INTEGER,            -- of the attempt that this row closes, with the last link of its conversation
    head           BLOB,
    digest         BLOB,               -- the hash of what was stored: a unit's inputs, an attempt's beginning, or what it left
    link           BLOB    NOT NULL
) STRICT;

-- Serves: the history of a unit.
CREATE INDEX journal_by_unit ON journal (unit_key, seq);

-- What an auditor wants to read of a unit, in one row.
CREATE VIEW units AS
SELECT
    u.key,
    j.name AS job,
    u.id,
    i.unit_type,
    u.status,
    u.priority,
    u.attempt_count,
    u.failure_kind,
    u.failure_message,
    datetime(u.created_at / 1000, 'unixepoch') AS created,
    datetime(u.not_before / 1000, 'unixepoch') AS not_before,
    datetime(a.started_at / 1000, 'unixepoch') AS started,
    datetime(u.completed_at / 1000, 'unixepoch') AS completed,
    a.ended_at - a.started_at AS execution_ms,
    a.worker_id,
    a.session_id,
    CAST(i.options AS TEXT) ->> '$.workspace_dir' AS workspace_dir,
    CAST(i.options AS TEXT) ->> '$.max_iterations' AS max_iterations,
    i.prompt,
    r.rendered_prompt,
    r.output,
    CAST(r.result AS TEXT) AS result,
    (SELECT count(*) FROM messages m WHERE m.unit_key = u.key AND m.attempt_number = u.attempt_count) AS messages,
    (SELECT sum(c.amount) / 1e9 FROM charges c WHERE c.unit_key = u.key) AS dollars,
    (SELECT count(*) FROM charges c WHERE c.unit_key = u.key AND c.amount IS NULL) AS unpriced
FROM work_units u
JOIN jobs j ON j.id = u.job_id
JOIN unit_inputs i ON i.unit_key = u.key
LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
LEFT JOIN attempt_results r ON r.unit_key = u.key AND r.attempt_number = u.attempt_count;

-- What is being executed: a row for each unit that is leased, stale or not.
--     SELECT * FROM active_units ORDER BY key;
-- What is left of a lease is told by the calendar: it is wrong by as much as that was set since the owner's last heartbeat.
CREATE VIEW active_units AS
SELECT
    u.key,
    j.name AS job,
    u.id,
    u.status,
    u.attempt_count AS attempt_number,
    u.fence,
    u.lease_owner AS owner_id,
    o.label AS owner,
    o.pid,
    u.lease_worker AS worker_id,
    datetime(a.assigned_at / 1000, 'unixepoch') AS since,
    u.lease_until_boot_ms - o.heartbeat_boot_ms + o.heartbeat_at
        - CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS lease_left_ms
FROM work_units u INDEXED BY work_units_leased
JOIN jobs j ON j.id = u.job_id
LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
LEFT JOIN owners o ON o.id = u.lease_owner
WHERE u.lease_owner IS NOT NULL;

-- What waits; by key, it comes in the order in which it was created. Whose turn it is also depends on priority and not_before.
--     SELECT * FROM queued_units ORDER BY key;
CREATE VIEW queued_units AS
SELECT
    u.key,
    j.name AS job,
    u.id,
    i.unit_type,
    u.priority,
    u.attempt_count,
    u.accepted_by AS owner_id,
    datetime(u.created_at / 1000, 'unixepoch') AS created,
    datetime(u.not_before / 1000, 'unixepoch') AS not_before
FROM work_units u
JOIN jobs j ON j.id = u.job_id
JOIN unit_inputs i ON i.unit_key = u.key
WHERE u.status = 'PENDING';

-- What nobody looks after any more, and why: leases that ran out, and those of an earlier boot than that of the owner who came last.
--     SELECT * FROM stale_leases ORDER BY key;
-- It goes by what is in the file and by the calendar. That a process has died only the system knows, and that the machine was
-- started again the file shows only once somebody has come back to it: until then such a lease is found when it runs out.
-- `audit::questions::stale` asks the system too.
CREATE VIEW stale_leases AS
SELECT
    l.key,
    l.job,
    l.id,
    l.status,
    l.attempt_number,
    l.owner_id,
    l.owner,
    l.pid,
    l.worker_id,
    l.since,
    CASE WHEN o.boot_id <> latest.boot_id THEN 0 ELSE l.lease_left_ms END AS lease_left_ms,
    CASE WHEN o.boot_id <> latest.boot_id THEN 'the machine was started again' ELSE 'the lease ran out' END AS reason
FROM active_units l
LEFT JOIN owners o ON o.id = l.owner_id AND o.boot_id <> ''
LEFT JOIN owners latest ON latest.id = (SELECT max(id) FROM owners WHERE boot_id <> '')
WHERE o.boot_id <> latest.boot_id OR l.lease_left_ms <= 0;
