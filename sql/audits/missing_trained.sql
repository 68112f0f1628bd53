-- One row an execution that has paths though it is lost, not the current one of its place, or without a valid
-- assessment.
-- Key: group_id, execution_id
with trained as (
    select group_id, execution_id, coalesce(sum(length) filter (target), 0)::bigint as targets
    from segments
    group by group_id, execution_id
),

final as (
    select t.group_id, t.execution_id, e.status, e.is_current, a.assessment, t.targets
    from trained as t
    left join executions as e on e.execution_id = t.execution_id
    left join assessments as a on a.execution_id = t.execution_id
    where coalesce(not e.is_current or e.status = 'lost' or a.assessment not in ('scored', 'partial'), true)
)

select * from final
