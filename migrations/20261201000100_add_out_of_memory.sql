-- A job that uses more memory than it asked for has a code of its own.
ALTER TYPE failure_code ADD VALUE 'out_of_memory' BEFORE 'rank_error';
