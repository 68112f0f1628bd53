-- One row an ended execution: its whole tree as two flat arrays, into which `nodes` and `segments` point.
-- `token_ids`: each call's own context, then its own output, in the order of call ids. `logprobs`: the
-- log-probabilities of the outputs, in the same order. A call without them fills its places with NaN, so that
-- offsets hold and whoever reads one by mistake sees it: never 0.0.
-- The only model that reads token lists: ask for it by the group, not for a whole lake.
-- Key: group_id, execution_id
with tokens as (
    select
        e.execution_id,
        e.call_id,
        list_concat(e.context_ids, e.output_ids) as token_ids,
        coalesce(e.output_logprobs, list_resize([]::float[], e.n_output, 'nan'::float)) as logprobs
    from event_calls as e
    join tree_executions as x on x.execution_id = e.execution_id
    left join repeated_calls as r on r.event_id = e.event_id
    where e.call_id < x.calls
        and (r.event_id is null or ((e.log_partition::bigint << 48) | e.log_offset) = r.first_seen)
),

joined as (
    select
        execution_id,
        flatten(list(token_ids order by call_id)) as token_ids,
        flatten(list(logprobs order by call_id)) as logprobs
    from tokens
    group by execution_id
),

final as (
    select
        e.group_id,
        e.execution_id,
        coalesce(j.token_ids, []::integer[]) as token_ids,
        coalesce(j.logprobs, []::float[]) as logprobs
    from executions as e
    left join joined as j on j.execution_id = e.execution_id
    where e.is_current and e.status is not null
)

select * from final
