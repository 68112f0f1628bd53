-- One row an execution of a consumed group that reported more calls than the lake holds.
-- Key: group_id, execution_id
with arrived as (
    select execution_id, call_id
    from event_calls
    group by execution_id, call_id
),

final as (
    select
        e.group_id,
        e.execution_id,
        e.calls,
        count(c.call_id) as arrived
    from groups as g
    join executions as e on e.group_id = g.group_id
    left join arrived as c
        on c.execution_id = e.execution_id and c.call_id >= 0 and c.call_id < e.calls
    where g.state = 'CONSUMED' and e.is_current
    group by e.group_id, e.execution_id, e.calls
    having count(c.call_id) is distinct from e.calls
)

select * from final
