-- One row a model call, without its tokens: the narrow columns that everything but `trees` stands on.
-- A call is `delivered` unless its own event or a later `reply.undelivered` says that the harness never
-- saw the answer. `version_first` and `version_last` are null where the engine did not say. `experts` refers
-- to the routed experts in the run's blobs (lake.experts), null where there are none.
-- An event id that was appended twice counts once: the lowest offset wins.
-- Key: group_id, execution_id, call_id
with undelivered as (
    select distinct execution_id, call_id
    from event_executions
    where type = 'reply.undelivered'
),

final as (
    select
        c.group_id,
        c.execution_id,
        c.call_id,
        c.parent_call_id,
        c.shared_len,
        c.n_context::bigint as n_context,
        c.n_output::bigint as n_output,
        c.role,
        case c.role
            when 'main' then 0
            when 'main-summary' then 1
            when 'sub-agent' then 2
            when 'sub-agent-summary' then 3
            else 4
        end as role_rank,
        c.relation,
        c.difference,
        c.retry_of,
        c.delivered and u.call_id is null as delivered,
        c.n_logprobs is not null as has_logprobs,
        c.finish_reason,
        c.spans[1].version as version_first,
        c.spans[-1].version as version_last,
        c.engine,
        c.temperature,
        c.cached_tokens,
        c.time_us,
        c.started_us,
        c.finished_us,
        nullif(c.experts, '') as experts
    from event_calls as c
    left join repeated_calls as r on r.event_id = c.event_id
    left join undelivered as u on u.execution_id = c.execution_id and u.call_id = c.call_id
    where r.event_id is null or ((c.log_partition::bigint << 48) | c.log_offset) = r.first_seen
)

select * from final
