-- Of which lane warned_collective is.
ALTER TABLE attempt ADD COLUMN warned_lane integer;
