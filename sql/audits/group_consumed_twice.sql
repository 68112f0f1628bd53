-- One row a group that more than one step trained on, by its own events or by the plans of committed steps.
-- Key: group_id
with uses as (
    select group_id, step
    from event_groups
    where type = 'group.consumed'
    union
    select unnest(groups), step
    from steps
    where new_version is not null
),

final as (
    select group_id, list(step order by step) as steps
    from uses
    group by group_id
    having count(*) > 1
)

select * from final
