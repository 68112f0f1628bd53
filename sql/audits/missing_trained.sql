-- One row an execution that has paths though it is lost, not the current one of its place, or without a valid
-- assessment (`score_unknown` holds the assessments of `weights` against the scores).
-- Key: group_id, execution_id
with trained as (
    select group_id, execution_id, coalesce(sum(length) filter (target), 0)::bigint as targets
    from segments
    group by group_id, execution_id
),

final as (
    select t.group_id, t.execution_id, e.status, e.is_current, w.assessment, t.targets
    from trained as t
    left join executions as e on e.execution_id = t.execution_id
    left join weights as w on w.execution_id = t.execution_id
    where not coalesce(
        e.is_current and e.status <> 'lost' and w.valid and w.assessment in ('scored', 'partial'), false
    )
)

select * from final
