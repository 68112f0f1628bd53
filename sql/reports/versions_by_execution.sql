-- Question: Which policy versions sampled each execution?
-- One row an execution and policy version that sampled for it. An execution may span several versions; null
-- is a version that the engine did not say.
-- Then: many versions an execution are weights that change under running calls: token_d of staleness_by_step.
-- Empty: no call has sampled a token.
-- Key: group_id, execution_id, version
with final as (
    select
        group_id,
        execution_id,
        version,
        count(distinct call_id) as calls,
        min(call_id) as first_call_id,
        sum(output_end - output_start)::bigint as tokens
    from version_spans
    group by group_id, execution_id, version
)

select * from final
