-- Question: How do scores change with the policy version?
-- One row a version: the current executions whose first token it sampled (null: the engine did not say, or
-- the execution has no calls). All assessed executions count, trained or not.
-- Then: this is the learning curve without the trainer's choice of groups; compare it with score_by_step.
-- Empty: no execution has ended.
-- Key: version
with began as (
    select execution_id, arg_min(version, (call_id, output_start)) as version, min(version) as lowest
    from version_spans
    group by execution_id
),

listed as (
    select
        b.version,
        count(*) as executions,
        coalesce(list(v.value order by e.execution_id) filter (v.value is not null), []::double[]) as scores
    from executions as e
    left join began as b on b.execution_id = e.execution_id
    left join valid_executions as v on v.execution_id = e.execution_id
    where e.is_current and e.status is not null
    group by b.version
),

final as (
    select
        version,
        executions,
        executions - len(scores) as executions_missing,
        case when len(scores) > 0 then list_sum(scores) / len(scores) end as score_mean,
        list_min(scores) as score_min,
        list_max(scores) as score_max
    from listed
)

select * from final
