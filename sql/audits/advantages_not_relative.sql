-- One row a group whose advantages are not relative to it: they do not sum to zero (to 1e-9 of the largest),
-- or one is not exactly zero though all valid values are equal or there is but one.
-- Key: group_id
with counted as (
    select
        group_id,
        count(*) as valid,
        min(value) = max(value) as flat,
        sum(advantage) as total,
        max(abs(advantage)) as largest
    from weights
    where valid
    group by group_id
),

final as (
    select *
    from counted
    where (flat and largest <> 0) or not coalesce(abs(total) <= 1e-9 * valid * largest, false)
)

select * from final
