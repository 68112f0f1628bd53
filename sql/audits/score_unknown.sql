-- One row an execution whose assessment and value in `weights` are those of none of its scores in the lake.
-- Key: group_id, execution_id
with final as (
    select w.group_id, w.execution_id, w.assessment, w.value
    from weights as w
    where w.assessment is not null
        and not exists (
            select 1
            from scores as s
            where s.execution_id = w.execution_id
                and s.assessment = w.assessment
                and s.value is not distinct from w.value
        )
)

select * from final
