-- One row a committed step whose E (the valid executions with targets, by which its loss was divided) is not
-- that of the groups that it was planned on.
-- Key: step
with planned as (
    select step, executions, unnest(groups) as group_id
    from steps
    where new_version is not null and set_name = (select set_name from params)
),

final as (
    select
        p.step,
        p.executions,
        count(*) filter (w.valid and w.n_targets > 0) as executions_derived
    from planned as p
    join weights as w on w.group_id = p.group_id
    group by p.step, p.executions
    having p.executions <> count(*) filter (w.valid and w.n_targets > 0)
)

select * from final
