-- One row a call whose counts are not the lengths of its lists, or that has not one log-probability a token.
-- Key: group_id, execution_id, call_id
with measured as (
    select
        group_id,
        execution_id,
        call_id,
        n_context,
        n_output,
        n_logprobs,
        len(context_ids) as context_ids,
        len(output_ids) as output_ids,
        len(output_logprobs) as output_logprobs
    from event_calls
),

final as (
    select *
    from measured
    where n_context is distinct from context_ids
        or n_output is distinct from output_ids
        or n_logprobs is distinct from output_logprobs
        or n_logprobs <> n_output
)

select * from final
