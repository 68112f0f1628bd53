-- One row a dispatched group: how far it is, and what it waits for. It is complete when each of its places has
-- an execution that ended and is assessed (`missing` is an answer), and every call that these reported is in the
-- lake. A lost execution ends its place only with a `missing` assessment: until then it is to be launched again.
-- The ingest worker runs this often: no token list is read.
-- Key: group_id
with arrived as (
    select c.execution_id, count(distinct c.call_id) as calls
    from event_calls as c
    join executions as e on e.execution_id = c.execution_id
    where e.is_current and c.call_id < e.calls
    group by c.execution_id
),

places as (
    select
        e.group_id,
        count(*) as launched,
        count(*) filter (e.status is null) as running,
        count(*) filter (e.status = 'lost' and a.assessment is distinct from 'missing') as lost,
        count(*) filter (e.status <> 'lost' or a.assessment = 'missing') as terminal,
        count(*) filter ((e.status <> 'lost' or a.assessment = 'missing') and a.assessment is not null) as assessed,
        coalesce(sum(e.calls - coalesce(c.calls, 0)), 0)::bigint as calls_missing
    from executions as e
    join groups as g on g.group_id = e.group_id and e.index >= 0 and e.index < g.size
    left join assessments as a on a.execution_id = e.execution_id
    left join arrived as c on c.execution_id = e.execution_id
    where e.is_current
    group by e.group_id
),

counted as (
    select
        g.group_id,
        g.size,
        coalesce(p.launched, 0) as places_launched,
        coalesce(p.running, 0) as running,
        coalesce(p.lost, 0) as lost,
        coalesce(p.terminal, 0) as terminal,
        coalesce(p.assessed, 0) as assessed,
        coalesce(p.calls_missing, 0) as calls_missing
    from groups as g
    left join places as p on p.group_id = g.group_id
),

final as (
    select
        group_id,
        size,
        places_launched,
        terminal,
        assessed,
        calls_missing,
        terminal >= size and assessed >= size and calls_missing = 0 as complete,
        nullif(
            concat_ws(
                '; ',
                case when places_launched < size
                    then format('{} of {} executions not launched', size - places_launched, size) end,
                case when running > 0 then format('{} of {} executions running', running, size) end,
                case when lost > 0 then format('{} of {} executions lost, to be launched again', lost, size) end,
                case when assessed < terminal
                    then format('{} of {} executions not assessed', terminal - assessed, size) end,
                case when calls_missing > 0 then format('{} calls not in the lake', calls_missing) end
            ),
            ''
        ) as waiting_for
    from counted
)

select * from final
