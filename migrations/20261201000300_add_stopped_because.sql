-- Why an attempt was told to stop, as people read it.

ALTER TABLE attempt ADD COLUMN stopped_because text;
