-- One row a group with a launched execution: mean and sample standard deviation (ddof 1) of its valid values.
-- The values are summed in the order of their places in the group, so that neither row order nor threads
-- change a bit. Equal values have zero variance exactly, not by a rounded sum.
-- Key: group_id
with places as (
    select group_id, count(*) as executions
    from executions
    where is_current
    group by group_id
),

listed as (
    select group_id, list(value order by index) as scores
    from valid_executions
    group by group_id
),

centred as (
    select group_id, scores, list_sum(scores) / len(scores) as mean
    from listed
),

spread as (
    select
        group_id,
        scores,
        mean,
        list_sum(list_transform(scores, lambda x: (x - mean) * (x - mean))) as squares
    from centred
),

final as (
    select
        p.group_id,
        p.executions,
        coalesce(len(s.scores), 0) as valid,
        s.mean,
        case when len(s.scores) >= 2 then sqrt(s.squares / (len(s.scores) - 1)) end as std,
        coalesce(len(s.scores) >= 2 and (list_min(s.scores) = list_max(s.scores) or s.squares = 0), false)
            as zero_variance
    from places as p
    left join spread as s on s.group_id = p.group_id
)

select * from final
