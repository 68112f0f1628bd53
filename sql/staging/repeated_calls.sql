-- One row an event of `event_calls` that was appended more than once, and where it was seen first (partition
-- << 48 | offset), which is what counts. Nearly always empty: found by counting, since to sort every call for
-- the sake of these would take most of the time of a derivation.
-- Key: event_id
with final as (
    select event_id, min((log_partition::bigint << 48) | log_offset) as first_seen
    from event_calls
    group by event_id
    having count(*) > 1
)

select * from final
