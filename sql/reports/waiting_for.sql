-- Question: What holds each group back now?
-- One row a group that is not consumed: how far it is, what it waits for, and how long ago it was dispatched,
-- as of the last event.
-- Then: go to what most of them name: executions to launch want slots, scores want the evaluator, calls that
-- are not in the lake want the ingest worker.
-- Empty: every group has been consumed, or none was dispatched.
-- Key: group_id
with final as (
    select
        g.group_id,
        g.state,
        g.dispatch_version,
        (c.last_us - g.dispatched_us) / 1e6 as since_dispatch_s,
        case
            when g.state = 'CLAIMED' then format('step {} to be committed', g.claimed_step)
            when g.state = 'READY' then 'the trainer to take it'
            else coalesce(s.waiting_for, 'to be made ready: it is complete')
        end as waiting_for
    from groups as g
    cross join clock as c
    left join group_state as s on s.group_id = g.group_id
    where g.state <> 'CONSUMED'
)

select * from final
