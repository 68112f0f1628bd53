-- One row a target of a call whose answer never reached the harness, or that has no log-probabilities.
-- Key: group_id, execution_id, path, depth_start
with barred as (
    select execution_id, call_id
    from event_calls
    where not delivered or n_logprobs is null
    union
    select execution_id, call_id
    from event_executions
    where type = 'reply.undelivered'
),

final as (
    select s.group_id, s.execution_id, s.path, s.depth_start, s.call_id, s.node, s.length
    from segments as s
    semi join barred as b on b.execution_id = s.execution_id and b.call_id = s.call_id
    where s.target
)

select * from final
