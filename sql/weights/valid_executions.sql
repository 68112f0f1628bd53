-- One row an execution that counts: current, not lost, and assessed with a number (`scored` or `partial`; a
-- zero is a number). All others have no advantage, no paths and no part in mean, deviation or batch.
-- Key: group_id, execution_id
with final as (
    select e.group_id, e.execution_id, e.index, a.value
    from executions as e
    join assessments as a on a.execution_id = e.execution_id
    where e.is_current and e.status <> 'lost' and a.assessment in ('scored', 'partial')
)

select * from final
