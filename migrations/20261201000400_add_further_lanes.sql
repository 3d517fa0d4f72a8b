-- How far a rank is in the collectives of further groups of the same ranks, lanes 1, 2, …: an array of
-- {"lane", "entered", "left", "what", "at"}. Of lane 0 the columns beside it say the same.
ALTER TABLE group_member ADD COLUMN further_lanes jsonb;
