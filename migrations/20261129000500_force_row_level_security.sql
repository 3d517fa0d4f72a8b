-- The second wall between projects; the first is in the code. A test walks the catalogue and fails on a table without it.

DO $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT c.table_name
        FROM information_schema.columns AS c
        JOIN information_schema.tables AS t USING (table_schema, table_name)
        WHERE c.table_schema = current_schema() AND c.column_name = 'project_id' AND t.table_type = 'BASE TABLE'
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY own_project ON %I TO lockstep_app
             USING (project_id = (SELECT nullif(current_setting(''lockstep.project'', true), '''')::uuid))', name);
        EXECUTE format('CREATE POLICY all_projects ON %I TO lockstep_system USING (true)', name);
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA public TO lockstep_app, lockstep_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO lockstep_app, lockstep_system;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO lockstep_app, lockstep_system;

-- Append only, and nothing about nodes' or tokens' secrets, for requests of users.
REVOKE UPDATE, DELETE ON audit_event FROM lockstep_app, lockstep_system;
REVOKE ALL ON node, join_token, node_blame, node_quarantine FROM lockstep_app;
GRANT SELECT (node_id, organisation_id, name, last_seen_at, lease_expires_at) ON node TO lockstep_app;
