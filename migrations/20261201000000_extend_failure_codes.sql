-- Codes of links, of what ranks say to each other, and of what follows a lost group.

ALTER TYPE failure_code ADD VALUE 'link_or_device_stall' AFTER 'not_entered';
ALTER TYPE failure_code ADD VALUE 'comm_error' AFTER 'link_or_device_stall';
ALTER TYPE failure_code ADD VALUE 'reform_timeout' AFTER 'rendezvous_timeout';
ALTER TYPE failure_code ADD VALUE 'peer_unreachable' AFTER 'reform_timeout';
ALTER TYPE failure_code ADD VALUE 'abort_hung' AFTER 'peer_unreachable';
ALTER TYPE failure_code ADD VALUE 'mismatch' AFTER 'plan_mismatch';
