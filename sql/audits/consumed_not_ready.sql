-- One row a consumed group that was never announced as ready, or whose events or plan name no known group.
-- Key: group_id, step
with consumed as (
    select group_id, step
    from event_groups
    where type = 'group.consumed'
    union
    select unnest(groups), step
    from steps
    where new_version is not null
),

final as (
    select c.group_id, c.step
    from consumed as c
    anti join (select group_id from event_groups where type = 'group.ready') as r on r.group_id = c.group_id
)

select * from final
