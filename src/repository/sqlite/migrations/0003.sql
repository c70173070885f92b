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

CREATE INDEX job_journal_by_job ON job_journal (job_id, seq);
