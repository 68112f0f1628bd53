-- One row an event that an event table holds more than once: the lake keeps each event once.
-- Key: table_name, event_id
with events as (
    select 'event_calls' as table_name, event_id from event_calls
    union all
    select 'event_tools', event_id from event_tools
    union all
    select 'event_executions', event_id from event_executions
    union all
    select 'event_scores', event_id from event_scores
    union all
    select 'event_groups', event_id from event_groups
    union all
    select 'event_policy', event_id from event_policy
    union all
    select 'event_cells', event_id from event_cells
),

final as (
    select table_name, event_id, count(*) as times
    from events
    group by table_name, event_id
    having count(*) > 1
)

select * from final
