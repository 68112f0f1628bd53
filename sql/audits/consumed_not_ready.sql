-- One row a consumed group that was not announced as ready before, or whose events or plan name no known
-- group.
-- Key: group_id, step
with consumed as (
    select group_id, step, log_offset
    from event_groups
    where type = 'group.consumed'
    union all
    select unnest(groups), step, null
    from steps
    where new_version is not null
),

ready as (
    select group_id, min(log_offset) as log_offset
    from event_groups
    where type = 'group.ready'
    group by group_id
),

final as (
    select distinct c.group_id, c.step
    from consumed as c
    left join ready as r on r.group_id = c.group_id
    where r.log_offset is null or r.log_offset > c.log_offset
)

select * from final
